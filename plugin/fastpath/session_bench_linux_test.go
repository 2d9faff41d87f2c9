package fastpath

import (
	"testing"

	"github.com/coredns/coredns/core/dnsserver"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

// BenchmarkHeartbeat sends a heartbeat to an idle session.
func BenchmarkHeartbeat(b *testing.B) {
	s := &server{Server: new(dnsserver.Server)}
	_, c, fd := sessionPair(b, s)
	message := dso.AppendHeartbeat(nil, 1)
	buf := make([]byte, 1<<16)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Push(message)
		if i%100 == 99 {
			if _, err := unix.Read(fd, buf); err != nil {
				b.Fatal(err)
			}
		}
	}
}
