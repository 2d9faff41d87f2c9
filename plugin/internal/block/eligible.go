package block

import (
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// Eligibility describes whether a block has a fast path, and which stored answers it may send.
type Eligibility struct {
	Prevented    string // the reason why there is no fast path, "" if there is one
	ByGeneration bool   // answers without a TTL, valid while their generations are current, may be stored
	Shuffle      bool   // addresses are put in random order
}

// transparent are the plugins that need not see a query whose answer is stored, or whose work the fast path does. Every
// other plugin prevents the fast path.
var transparent = map[string]bool{
	"autopath":     true, // the fast path looks up its search lists
	"cache":        true,
	"errors":       true, // logs errors, which are not stored
	"forward":      true,
	"hosts":        true, // behind cache; see beforeKubernetes
	"kubernetes":   true,
	"loadbalance":  true, // round_robin only
	"loop":         true, // recognizes its own queries, whose answers are not stored
	"metadata":     true, // serves only plugins that are not in this list
	"multicluster": true, // is kubernetes for other zones
	"nodelocal":    true, // answers only the queries that it sends itself
	"prometheus":   true, // the fast path counts in its metrics
	"searchpath":   true, // its answers are stored
	"transfer":     true, // zone transfers are not stored
}

// storesByGeneration are the plugins whose answers are stored without plugin cache.
var storesByGeneration = map[string]bool{"autopath": true, "kubernetes": true, "multicluster": true, "searchpath": true}

// beforeKubernetes are the plugins that may answer before kubernetes, and whose answers change without an advance of its
// generations. With plugin cache, the TTL limits how long they are served.
var beforeKubernetes = map[string]bool{"hosts": true}

// Eligibility evaluates the plugins of the block. It is called when the servers start.
func (b *Block) Eligibility() Eligibility {
	config := b.config
	e := Eligibility{ByGeneration: true}
	cached, generated := false, false
	switch {
	case b.FastPathOff:
		e.Prevented = "directive fastpath is off"
	case len(config.FilterFuncs) > 0 || config.ViewName != "":
		e.Prevented = "plugin view has to see every query"
	}
	for _, h := range config.Handlers() {
		name := h.Name()
		cached = cached || name == "cache"
		generated = generated || storesByGeneration[name]
		if e.Prevented != "" {
			continue
		}
		switch {
		case !transparent[name]:
			e.Prevented = "plugin " + name + " has to see every query"
		case name == "loadbalance":
			if e.Shuffle = isRoundRobin(h); !e.Shuffle {
				e.Prevented = "plugin loadbalance has another policy than round_robin"
			}
		case beforeKubernetes[name]:
			e.ByGeneration = false
		}
	}
	switch {
	case e.Prevented != "":
	case !cached && !generated:
		e.Prevented = "neither cache nor kubernetes is configured"
	case !cached && !e.ByGeneration:
		e.Prevented = "plugin hosts may answer before kubernetes, and there is no cache"
	}
	return e
}

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

// neutral are the plugins that change neither queries for cluster names nor their answers.
var neutral = []string{
	"autopath", "cache", "errors", "forward", "loadbalance", "log", "loop", "metadata", "nodelocal", "prometheus",
	"searchpath", "whoami",
}

// IsShared reports whether another plugin of a server block, such as hosts or rewrite, may answer a query for a cluster
// name or change it, or whether another block may get the query (plugin view). Such a plugin sees only the queried name
// and not the other candidates of a search list. alsoNeutral are further plugins that the caller knows as neutral.
func IsShared(config *dnsserver.Config, alsoNeutral ...string) bool {
	return len(config.FilterFuncs) > 0 || slices.ContainsFunc(config.Handlers(), func(h plugin.Handler) bool {
		return !slices.Contains(neutral, h.Name()) && !slices.Contains(alsoNeutral, h.Name())
	})
}
