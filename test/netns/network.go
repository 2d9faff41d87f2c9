//go:build linux

package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// requestTimeout bounds the time of a request of Client.
const requestTimeout = 5 * time.Second

// Add makes a namespace for a network that is not a Bed. It has a loopback interface, no addresses, and role in its name,
// and is removed at the end of the test.
func Add(t testing.TB, role string) *Namespace {
	t.Helper()
	removeLeftovers(t)
	return add(t, fmt.Sprintf("%s%d-%d-%s", namePrefix, os.Getpid(), count.Add(1), role))
}

// add makes a namespace with a name.
func add(t testing.TB, name string) *Namespace {
	t.Helper()
	n := &Namespace{Name: name}
	kit.Output(t, exec.Command("ip", "netns", "add", n.Name))
	t.Cleanup(func() {
		if err := remove(n.Name); err != nil {
			t.Error(err)
		}
	})
	// No other host is on these links: without duplicate address detection, addresses are usable at once.
	n.Sysctl(t, "net/ipv6/conf/default/accept_dad", "0")
	n.ip(t, "link set lo up")
	return n
}

// Forwards enables IP forwarding in the namespace.
func (n *Namespace) Forwards(t testing.TB) {
	t.Helper()
	n.Sysctl(t, "net/ipv4/ip_forward", "1")
	n.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
}

// Join links the namespace with its router. Its interface is eth0, the router's is device. An address is a pattern such as
// "10.1.0.%d/24", for 1 at the router and 2 in the namespace. The default route of each family is by its first address.
func (n *Namespace) Join(t testing.TB, router *Namespace, device string, addresses ...string) {
	t.Helper()
	router.ip(t, fmt.Sprintf("link add %s type veth peer name eth0 netns %s", device, n.Name),
		fmt.Sprintf("link set %s up", device))
	n.ip(t, "link set eth0 up")
	for _, a := range addresses {
		far, near := netip.MustParsePrefix(fmt.Sprintf(a, 1)), netip.MustParsePrefix(fmt.Sprintf(a, 2))
		router.ip(t, fmt.Sprintf("addr add %v dev %s", far, device))
		n.ip(t, fmt.Sprintf("addr add %v dev eth0", near))
		own, all := &n.IPv6, netip.IPv6Unspecified()
		if far.Addr().Is4() {
			own, all = &n.IPv4, netip.IPv4Unspecified()
		}
		if !own.IsValid() {
			*own = near.Addr()
			n.ip(t, fmt.Sprintf("route add %v via %v", netip.PrefixFrom(all, 0), far.Addr()))
		}
	}
}

// DialContext connects to an address from the namespace.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	return n.dial(ctx, net.Dialer{}, network, address)
}

// Dial is DialContext with a dialer's options.
func (n *Namespace) Dial(d net.Dialer, network, address string) (c net.Conn, err error) {
	return n.dial(context.Background(), d, network, address)
}

func (n *Namespace) dial(ctx context.Context, d net.Dialer, network, address string) (c net.Conn, err error) {
	err = n.Do(func() error {
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Exchange sends a query and returns the reply, without retries.
func (n *Namespace) Exchange(network, address string, query *dns.Msg, timeout time.Duration) (*dns.Msg, error) {
	return n.exchange(net.Dialer{Timeout: timeout}, network, address, query)
}

func (n *Namespace) exchange(d net.Dialer, network, address string, query *dns.Msg) (*dns.Msg, error) {
	end := time.Now().Add(d.Timeout)
	c, err := n.Dial(d, network, address)
	if err != nil {
		return nil, err
	}
	client := dns.Client{Timeout: time.Until(end)}
	reply, _, err := client.ExchangeWithConn(query, &dns.Conn{Conn: c})
	return reply, errors.Join(err, c.Close())
}

// Client returns an HTTP client with connections from the namespace.
func (n *Namespace) Client() *http.Client {
	return &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}}
}
