//go:build linux

package netns

import (
	"net"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// Serve is kit.Serve in the namespace.
func (n *Namespace) Serve(t testing.TB, address string, handler dns.HandlerFunc) {
	t.Helper()
	kit.Must(t, n.Do(func() error { kit.Serve(t, address, handler); return nil }))
}

// ListenBoth is kit.ListenBoth in the namespace.
func (n *Namespace) ListenBoth(t testing.TB, address string) (packets net.PacketConn, streams net.Listener) {
	t.Helper()
	kit.Must(t, n.Do(func() error { packets, streams = kit.ListenBoth(t, address); return nil }))
	return packets, streams
}
