//go:build linux

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// added are further addresses of the server's host, alternately of each family.
var added = []string{"10.2.0.77", "fd02::77", "10.2.0.78", "fd02::78"}

// startIn starts clusterdns in a namespace, and waits until it answers there.
func startIn(t *testing.T, n *netns.Namespace, corefile string) *netns.Process {
	t.Helper()
	path := kit.File(t, "Corefile", corefile)
	p := n.Start(t, daemon.Program(t, "clusterdns"), "-conf", path)
	kit.Eventually(t, "the start line of the fast path", func() bool { return strings.Contains(p.Output(), ": fast path for ") })
	return p
}

// askFrom queries an address from a namespace with a socket that receives answers from any address, and returns the
// source of the answer.
func askFrom(t *testing.T, n *netns.Namespace, server netip.AddrPort, name string) netip.AddrPort {
	t.Helper()
	var conn *net.UDPConn
	err := n.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", nil)
		return err
	})
	kit.Must(t, err)
	defer func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}()
	query := pack(t, newQuery(name, dns.TypeA))
	for range 20 { // the log line precedes the first answer by a moment
		if _, err := conn.WriteToUDPAddrPort(query, server); err != nil {
			t.Fatal(err)
		}
		kit.Must(t, conn.SetReadDeadline(time.Now().Add(bounded/20)))
		b := make([]byte, 4096)
		count, from, err := conn.ReadFromUDPAddrPort(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		kit.Must(t, err)
		m := new(dns.Msg)
		if err := m.Unpack(b[:count]); err != nil || m.Id != uint16(query[0])<<8|uint16(query[1]) {
			t.Fatalf("answer with id %d: %v", m.Id, err)
		}
		return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	}
	return netip.AddrPort{}
}

// linkLocal returns the link-local address of a host's interface, with the zone of the other host of the link, in which
// the link is another device.
func linkLocal(t *testing.T, host, other *netns.Namespace, device string) netip.Addr {
	t.Helper()
	// Names of interfaces are looked up in the test's own namespace, so the zone is a number.
	index, _, _ := strings.Cut(other.Run(t, "ip", "-o", "link", "show", "dev", device), ":")
	fields := strings.Fields(host.Run(t, "ip", "-6", "-o", "addr", "show", "dev", "eth0", "scope", "link"))
	for _, f := range fields {
		if prefix, err := netip.ParsePrefix(f); err == nil {
			return prefix.Addr().WithZone(index)
		}
	}
	t.Fatalf("no link-local address in %q", fields)
	return netip.Addr{}
}

// scrapeIn reads the metrics of a program in a namespace.
func scrapeIn(t *testing.T, n *netns.Namespace) daemon.Samples {
	t.Helper()
	dial := func(_ context.Context, network, address string) (conn net.Conn, err error) {
		doErr := n.Do(func() error {
			conn, err = net.Dial(network, address)
			return err
		})
		return conn, doErr
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	return scrape(t, client, "127.0.0.1:9153", 53)
}

func TestSourceAddress(t *testing.T) {
	bed := netns.New(t)
	host := bed.Upstream
	for _, a := range added {
		bits := "/24"
		if strings.Contains(a, ":") {
			bits = "/64"
		}
		// Without duplicate address detection, which takes a second.
		args := []string{"addr", "add", a + bits, "dev", "eth0"}
		if bits == "/64" {
			args = append(args, "nodad")
		}
		host.Run(t, "ip", args...)
	}
	folder := newCluster(t)
	for _, tc := range []struct {
		name      string
		bind      string
		addresses []string // queried addresses
	}{
		{"wildcard", "", append([]string{host.IPv4.String(), host.IPv6.String()}, added...)},
		{"one address of several", "bind " + added[0], added[:1]},
		{"one IPv6 address of several", "bind " + added[1], added[1:2]},
		{"IPv4 wildcard", "bind 0.0.0.0", []string{host.IPv4.String(), added[0], added[2]}},
		{"interface", "bind eth0", append([]string{host.IPv4.String(), host.IPv6.String()}, added...)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := startIn(t, host, fmt.Sprintf(".:53 {\n%s\nprometheus 127.0.0.1:9153\nkubernetes cluster.local {\nmanifests %s\n}\n}\n", tc.bind, folder))
			for _, text := range tc.addresses {
				t.Run(text, func(t *testing.T) {
					server := netip.AddrPortFrom(netip.MustParseAddr(text), 53)
					for _, name := range []string{
						"web.shop.svc.cluster.local.", "web.shop.svc.cluster.local.", // the second is stored
						"WEB.shop.svc.cluster.local.", "example.org.", // the last never is
					} {
						if from := askFrom(t, bed.Pod[0], server, name); from != server {
							t.Errorf("asked for %s, %v answers as %v", name, server, from)
						}
					}
				})
			}
			if tc.name == "wildcard" {
				t.Run("link-local", func(t *testing.T) {
					server := netip.AddrPortFrom(linkLocal(t, host, bed.Node, "upstream"), 53)
					for range 2 {
						from := askFrom(t, bed.Node, server, "web.shop.svc.cluster.local.")
						if from.Addr().WithZone("") != server.Addr().WithZone("") {
							t.Errorf("%v answers as %v", server, from)
						}
					}
				})
			}
			// On a busy machine, the next queries may precede the storing of the first answer.
			kit.Eventually(t, "the fast path has answered queries and handed over others", func() bool {
				askFrom(t, bed.Pod[0], netip.AddrPortFrom(netip.MustParseAddr(tc.addresses[0]), 53), "web.shop.svc.cluster.local.")
				all := scrapeIn(t, host)
				return all.Sum(answeredTotal) > 0 && all.Sum(handedOverTotal) > 0
			})
			if code := p.Stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}
