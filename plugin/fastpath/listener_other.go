//go:build !linux

package fastpath

import (
	"net/netip"

	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// fastPath implements block.FastPath.
type fastPath struct{}

func newFastPath() fastPath { return fastPath{} }

// Serve implements block.FastPath: it logs that there is no fast path.
func (fastPath) Serve(conf *block.Configuration, server *dnsserver.Server) {
	if logZones(server.Addr, blocksOn(admission.NewPlaces(admission.DefaultLimits, validity.Now, nil), conf, server)) {
		log.Infof("%s: the fast path needs Linux, all queries go to the plugin chain", server.Addr)
	}
}

// Stop implements block.FastPath.
func (fastPath) Stop(*block.Configuration) {}

// StartBackground implements block.FastPath.
func (fastPath) StartBackground(netip.Addr) (end func(), ok bool) { return block.Background.Start() }
