//go:build linux

package coherence

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// dropped returns the number of datagrams that the kernel has dropped at the sockets of the caches and of their clients, since the
// buffer of a socket was full.
func (h *history) dropped() (n int) {
	h.t.Helper()
	ports := map[int]bool{}
	for _, c := range h.caches {
		ports[c.Port] = true
	}
	n = droppedIn(h.t, nil, ports)
	if h.node != nil {
		for _, in := range append(h.node.Pod[:], h.node.Node) {
			n += droppedIn(h.t, in, ports)
		}
	}
	return n
}

// droppedIn returns the number in a namespace, or in the network of the test without one, for sockets with one of some ports.
func droppedIn(t testing.TB, in *netns.Namespace, ports map[int]bool) (n int) {
	t.Helper()
	err := within(in, func() error {
		for _, file := range []string{"udp", "udp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			n += droppedAt(t, string(text), ports)
		}
		return nil
	})
	kit.Must(t, err)
	return n
}

// droppedAt returns the sum of the last column of /proc/net/udp for sockets with one of some ports, their own or the peer's.
func droppedAt(t testing.TB, text string, ports map[int]bool) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !ports[hexPort(fields[1])] && !ports[hexPort(fields[2])] {
			continue
		}
		drops, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil {
			t.Fatalf("/proc/net/udp: %v", err)
		}
		n += drops
	}
	return n
}

// hexPort returns the port of an address such as 0100007F:2EE0, 0 if it has none.
func hexPort(address string) int {
	_, port, _ := strings.Cut(address, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return 0
	}
	return int(n)
}

// TestDropped checks the number of datagrams that the kernel drops.
func TestDropped(t *testing.T) {
	server, err := net.ListenPacket("udp4", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	c, err := net.Dial("udp4", server.LocalAddr().String())
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	h := &history{t: t, caches: []*program{{Process: &daemon.Process{Port: server.LocalAddr().(*net.UDPAddr).Port}}}}
	if n := h.dropped(); n != 0 {
		t.Fatalf("%d dropped", n)
	}
	for range 10_000 {
		if _, err := c.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if h.dropped() == 0 {
		t.Error("none of 10 MB dropped")
	}
}
