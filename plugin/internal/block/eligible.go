package block

import (
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/bufsize"
	"github.com/coredns/coredns/plugin/dns64"

	"github.com/nearside-dns/nearside/plugin/internal/translation"
)

// Eligibility describes whether a block has a fast path, and which stored answers it may send.
type Eligibility struct {
	Prevented    string // the reason why there is no fast path, "" if there is one
	ByGeneration bool   // answers without a TTL, valid while their generations are current, may be stored
	Silent       string // the plugin because of which ByGeneration is false, "" without one
	Late         bool   // a plugin may change answers of kubernetes on their way to cache
	Signed       bool   // answers have signatures that depend on the serial of the SOA record
	Shuffle      bool   // addresses are put in random order
	BufSize      uint16 // max. UDP size in bytes that a client may have (plugin bufsize), 0 for none
	Local        bool   // plugin local answers names of the host
	Log          LogRules
	DNS64        *dns64.DNS64 // nil without the plugin
	Rewrites     Rewrites     // queries that they change get no stored answer from the fast path
}

// storesByGeneration are the plugins whose answers are stored without plugin cache.
var storesByGeneration = map[string]bool{"autopath": true, "kubernetes": true, "multicluster": true, "searchpath": true}

// Eligibility evaluates the plugins of the block. It is called when the servers start.
func (b *Block) Eligibility() Eligibility {
	config := b.config
	e := Eligibility{ByGeneration: true}
	cached, generated, late := false, false, ""
	switch {
	case b.FastPathOff:
		e.Prevented = "directive fastpath is off"
	case len(config.FilterFuncs) > 0 || config.ViewName != "":
		e.Prevented = "plugin view has to see every query"
	}
	for _, h := range config.Handlers() {
		name, t := h.Name(), traitsOf(h)
		cached = cached || name == "cache"
		generated = generated || storesByGeneration[name] && !isReplaced(h)
		if t.late {
			e.Late, late = true, name
		}
		e.Signed = e.Signed || t.signs
		if t.silent {
			e.ByGeneration, e.Silent = false, name
		}
		if e.Prevented == "" {
			e.add(b, h, t)
		}
	}
	switch {
	case e.Prevented != "":
	case !cached && !generated:
		e.Prevented = "neither cache nor kubernetes is configured"
	case !cached && e.Late:
		e.Prevented = "plugin " + late + " may answer before kubernetes or change its answers, and there is no cache"
	}
	return e
}

// add adds a plugin of a block with its traits.
func (e *Eligibility) add(b *Block, h plugin.Handler, t traits) {
	switch name := h.Name(); {
	case !t.hits && isReplaced(h):
		e.Prevented = "plugin " + name + " is CoreDNS's and not nearside's"
	case !t.hits:
		e.Prevented = "plugin " + name + " has to see every query"
	case name == "loadbalance":
		if e.Shuffle = isRoundRobin(h); !e.Shuffle {
			e.Prevented = "plugin loadbalance has another policy than round_robin"
		}
	case name == "bufsize":
		if size, ok := h.(bufsize.Bufsize); ok {
			e.BufSize = uint16(size.Size) // #nosec G115 -- at most 4096
		} else {
			e.Prevented = unknownVersion(name)
		}
	case name == "local":
		e.Local = true
	case name == "dns64":
		switch h := h.(type) {
		case *dns64.DNS64:
			e.DNS64 = h
		case translation.Handler:
			e.DNS64 = h.DNS64
		default:
			e.Prevented = unknownVersion(name)
		}
	case name == "rewrite":
		var ok bool
		if e.Rewrites, ok = rewritesOf(h); !ok {
			e.Prevented = "plugin rewrite has to see every query, because of a rule of cname, edns0 or metadata"
		}
	case name == "log":
		var ok bool
		switch e.Log, ok = logRules(h); {
		case !ok:
			e.Prevented = unknownVersion(name)
		case b.logsAll(e.Log):
			e.Prevented = "plugin log has to see every query"
		}
	}
}

// unknownVersion is the reason for a handler of a type that CoreDNS v1.15 does not have.
func unknownVersion(name string) string { return "plugin " + name + " is of an unknown version" }

// ServerPrevents returns the reason why no block of a server has a fast path, "" without one. CoreDNS merges the settings
// behind these reasons over all server blocks of a listener.
func ServerPrevents(server *dnsserver.Server) string {
	opcodes := Opcodes(server)
	switch {
	case len(server.TsigSecret) > 0:
		return "a server block of this listener has TSIG secrets (plugin tsig)"
	case hasConnPolicy(server):
		return "a server block of this listener expects the PROXY protocol (plugin proxyproto)"
	case opcodes == nil || len(opcodes) > 0:
		return "a server block of this listener accepts other opcodes than QUERY and NOTIFY"
	}
	return ""
}

// IsShared reports whether another plugin of a server block, such as hosts or rewrite, may answer a query for a cluster
// name or change it, or whether another block may get the query (plugin view). Such a plugin sees only the queried name
// and not the other candidates of a search list. alsoNeutral are further plugins that the caller knows as neutral.
func IsShared(config *dnsserver.Config, alsoNeutral ...string) bool {
	return len(config.FilterFuncs) > 0 || slices.ContainsFunc(config.Handlers(), func(h plugin.Handler) bool {
		return !traitsOf(h).neutral && !slices.Contains(alsoNeutral, h.Name())
	})
}
