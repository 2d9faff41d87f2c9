//go:build !linux

package fastpath

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
)

// serve says that the server answers alone: the fast path is Linux's.
func (conf *configuration) serve(server *dnsserver.Server) dns.DecorateWriter {
	if describe(server.Addr, conf.usesOn(server)) {
		log.Infof("%s: the fast path needs Linux, the server answers alone", server.Addr)
	}
	return nil
}

type registry struct{}

var listeners registry

func (registry) leave(func(*configuration) bool, bool) {}
func (registry) forget(*configuration)                 {}

func (conf *configuration) announce() {}

type chain struct{}

func newChain(int) *chain { return nil }
