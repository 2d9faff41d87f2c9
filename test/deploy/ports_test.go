package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/reuseport"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestPortsInUse starts the programs while another process has one of their ports. One with SO_REUSEPORT, as CoreDNS has it,
// would share the port.
func TestPortsInUse(t *testing.T) {
	const served, everywhere = ".:HELDPORT {\n    bind 127.0.0.1\n    whoami\n}\n", ".:HELDPORT {\n    whoami\n}\n"
	const other = ".:PORT {\n    bind 127.0.0.1\n    whoami\n"
	for _, tc := range []struct {
		name     string
		network  string // of the other process
		host     string
		shares   bool   // the other process has SO_REUSEPORT
		corefile string // HELD is the address of the other process
		args     []string
		want     string // in the output
		ends     bool
	}{
		{"DNS", "tcp", "127.0.0.1", false, served, nil, "listen tcp HELD: address already in use by another process", true},
		{"DNS over UDP, which would be shared", "udp", "127.0.0.1", true, served, nil, "listen udp HELD: address already in use by another process", true},
		{"DNS over TCP, which would be shared", "tcp", "127.0.0.1", true, served, nil, "listen tcp HELD: address already in use by another process", true},
		{"DNS at all addresses in use at one", "udp", "127.0.0.1", true, everywhere, nil, "listen udp :HELDPORT: address already in use by another process", true},
		{"DNS at an address in use at all", "udp", "", true, served, nil, "listen udp 127.0.0.1:HELDPORT: address already in use by another process", true},
		{"DNS over TLS", "tcp", "127.0.0.1", true, "tls://.:HELDPORT {\n    bind 127.0.0.1\n    whoami\n}\n" + other + "}\n", nil, "listen tcp HELD: address already in use by another process", true},
		{"health", "tcp", "127.0.0.1", false, other + "    health HELD\n}\n", nil, "plugin/health: listen tcp HELD: address already in use by another process", true},
		{"health, which would be shared", "tcp", "127.0.0.1", true, other + "    health HELD\n}\n", nil, "plugin/health: listen tcp HELD: address already in use by another process", true},
		{"health of two server blocks", "tcp", "127.0.0.1", true, other + "    health :FREE\n}\ntest:PORT {\n    bind 127.0.0.1\n    whoami\n    health :FREE\n}\n", nil, "", false},
		{"health with -reuseport", "tcp", "127.0.0.1", true, other + "    health HELD\n}\n", []string{"-reuseport"}, "", false},
		{"ready", "tcp", "127.0.0.1", false, other + "    ready HELD\n}\n", nil, "", false},
		{"prometheus", "tcp", "127.0.0.1", false, other + "    prometheus HELD\n}\n", nil, "Failed to start metrics handler: listen tcp HELD", false},
	} {
		for _, name := range []string{"clusterdns", "nodecache"} {
			t.Run(tc.name+" of "+name, func(t *testing.T) {
				port := strconv.Itoa(daemon.FreePort(t))
				held := net.JoinHostPort(tc.host, port)
				hold(t, tc.network, held, tc.shares)
				at := strings.NewReplacer("HELDPORT", port, "HELD", held, "FREE", strconv.Itoa(daemon.FreePort(t)))
				p := daemon.Launch(t, daemon.Program(t, name), at.Replace(tc.corefile), tc.args...)
				if tc.ends {
					if code, err := p.Wait(deadline); err != nil || code != 1 {
						t.Errorf("exit code %d, %v", code, err)
					}
				} else {
					kit.Succeeds(t, deadline, "an answer", func() error {
						_, err := answer(p.Addr, "www.example.com A")
						return err
					})
				}
				kit.Succeeds(t, deadline, "the output", func() error {
					if want := at.Replace(tc.want); !strings.Contains(p.Output(), want) {
						return fmt.Errorf("%q, want %q", p.Output(), want)
					}
					return nil
				})
			})
		}
	}
}

// hold listens on an address until the end of the test.
func hold(t *testing.T, network, address string, shares bool) {
	t.Helper()
	var config net.ListenConfig
	listen, listenPacket := config.Listen, config.ListenPacket
	if shares {
		listen = func(_ context.Context, network, address string) (net.Listener, error) {
			return reuseport.Listen(network, address)
		}
		listenPacket = func(_ context.Context, network, address string) (net.PacketConn, error) {
			return reuseport.ListenPacket(network, address)
		}
	}
	var holder io.Closer
	var err error
	if network == "udp" {
		holder, err = listenPacket(t.Context(), network, address)
	} else {
		holder, err = listen(t.Context(), network, address)
	}
	kit.Must(t, err)
	t.Cleanup(func() { _ = holder.Close() })
}

// TestSecondServer starts a program twice with one port: the second is refused unless told otherwise, and the first reloads.
func TestSecondServer(t *testing.T) {
	for _, name := range []string{"clusterdns", "nodecache"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// With a block without the fast path, and one with it, which have the same address of health.
			server := func(port, health string) string {
				return strings.NewReplacer("SERVED", port, "HEALTH", health).Replace(".:SERVED {\n    bind 127.0.0.1\n    whoami\n    health HEALTH\n}\n" +
					"example.org:SERVED {\n    bind 127.0.0.1\n    cache\n    forward . 127.0.0.1:1\n    health HEALTH\n}\n")
			}
			health := func() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t))) }
			own := health()
			program := daemon.Program(t, name)
			first := daemon.Start(t, program, server("PORT", own))
			second := daemon.Launch(t, program, server(strconv.Itoa(first.Port), health()))
			if code, err := second.Wait(deadline); err != nil || code != 1 || strings.Count(second.Output(), "\n") != 1 {
				t.Errorf("the second server ended with %d, %v and %q, want one line", code, err, second.Output())
			}
			other := daemon.Start(t, program, server("PORT", health()))
			reload := func(p *daemon.Process, port int, want string) {
				t.Helper()
				logged := strings.Count(p.Output(), want)
				p.Configure(t, server(strconv.Itoa(port), own))
				p.Signal(t, syscall.SIGUSR1)
				kit.Succeeds(t, deadline, "the reload", func() error {
					if strings.Count(p.Output(), want) == logged {
						return fmt.Errorf("no %q in %q", want, p.Output())
					}
					return nil
				})
			}
			free := daemon.FreePort(t)
			reload(first, first.Port, "Reloading complete")
			reload(first, free, "Reloading complete")
			reload(first, first.Port, "Reloading complete")
			reload(first, other.Port, "Not reloaded, the previous configuration stays in use: ")
			reload(first, other.Port, "Not reloaded, the previous configuration stays in use: ")
			if _, err := answer(first.Addr, "www.example.com A"); err != nil || !strings.Contains(first.Output(), "address already in use by another process") {
				t.Errorf("after a refused reload: %v, %q", err, first.Output())
			}
			shared := daemon.Launch(t, program, server(strconv.Itoa(first.Port), own), "-reuseport")
			kit.Succeeds(t, deadline, "the start with -reuseport", func() error {
				if !strings.Contains(shared.Output(), "CoreDNS-") {
					return errors.New(shared.Output())
				}
				return nil
			})
		})
	}
}
