//go:build !linux

package fastpath

import (
	"net/netip"

	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// Serve implements block.FastPath: it logs that the server answers alone.
func (fastPath) Serve(conf *block.Configuration, server *dnsserver.Server) {
	if describe(server.Addr, usesOn(conf, server)) {
		log.Infof("%s: the fast path needs Linux, the server answers alone", server.Addr)
	}
}

// Announce implements block.FastPath.
func (fastPath) Announce(*block.Configuration) {}

// Retain implements block.FastPath.
func (fastPath) Retain(*block.Configuration) {}

// Leave implements block.FastPath.
func (fastPath) Leave(func(*block.Configuration) bool, bool) {}

// StartBackground implements block.FastPath.
func (fastPath) StartBackground(netip.Addr) (end func(), ok bool) { return block.Background.Start() }

type chain struct{}

func newChain(int) *chain { return nil }
