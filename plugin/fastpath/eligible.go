package fastpath

import (
	"reflect"
	"runtime"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/loadbalance"
)

// use is what the plugins of a block allow.
type use struct {
	prevented    string // why there is no fast path, empty if there is one
	byGeneration bool   // answers may be kept that hang on Generations alone
	shuffle      bool   // addresses change places
}

// transparent are the plugins that need not see a query that another one has answered before, or that
// the fast path does the work of. What is not here prevents the fast path.
var transparent = map[string]bool{
	"autopath":     true, // tells which names it answers
	"cache":        true,
	"errors":       true, // sees errors, which are not kept
	"forward":      true,
	"hosts":        true, // behind cache; see below
	"kubernetes":   true,
	"loadbalance":  true, // see below
	"loop":         true, // looks for questions of its own, which are not kept
	"metadata":     true, // for plugins that are not here
	"multicluster": true, // is kubernetes, for other zones
	"nodelocal":    true, // answers questions of its own
	"prometheus":   true, // what it counts is counted here
	"searchpath":   true, // keeps what it answers
	"transfer":     true, // zone transfers are not kept
}

// keepsByGeneration are the plugins whose answers are kept without a cache.
var keepsByGeneration = map[string]bool{"autopath": true, "kubernetes": true, "multicluster": true, "searchpath": true}

// uncached are the plugins that may answer in front of kubernetes, and change their mind without an
// advance of its Generations. With a cache, its TTLs bound what they say.
var uncached = map[string]bool{"hosts": true}

// look returns what the plugins of a server block allow. CoreDNS has to have made its handlers.
func (b *Block) look() use {
	config := b.config
	u := use{byGeneration: true}
	cached, generated := false, false
	switch {
	case b.off:
		u.prevented = "the Corefile says off"
	case len(config.FilterFuncs) > 0 || config.ViewName != "":
		u.prevented = "plugin view has to see every query"
	}
	for _, h := range config.Handlers() {
		name := h.Name()
		cached = cached || name == "cache"
		generated = generated || keepsByGeneration[name]
		if u.prevented != "" {
			continue
		}
		switch {
		case !transparent[name]:
			u.prevented = "plugin " + name + " has to see every query"
		case name == "loadbalance":
			if u.shuffle = isRoundRobin(h); !u.shuffle {
				u.prevented = "plugin loadbalance has another policy than round_robin"
			}
		case uncached[name]:
			u.byGeneration = false
		}
	}
	switch {
	case u.prevented != "":
	case !cached && !generated:
		u.prevented = "neither cache nor kubernetes is configured"
	case !cached && !u.byGeneration:
		u.prevented = "plugin hosts may answer before kubernetes, and there is no cache"
	}
	return u
}

// policyOf returns the reason why a server has no fast path, empty if there is none. The settings are those of all its
// server blocks: each of them applies to every datagram of the listener.
func policyOf(server *dnsserver.Server) string {
	policy := reflect.ValueOf(server).Elem().FieldByName("connPolicy")
	opcodes := opcodesOf(server)
	switch {
	case len(server.TsigSecret) > 0:
		return "a server block of this listener has TSIG secrets (plugin tsig)"
	case policy.Kind() != reflect.Func || !policy.IsNil():
		return "a server block of this listener expects the PROXY protocol (plugin proxyproto)"
	case opcodes == nil || len(opcodes) > 0:
		return "a server block of this listener accepts other opcodes than QUERY and NOTIFY"
	}
	return ""
}

// opcodesOf returns the opcodes that a server accepts besides QUERY and NOTIFY, nil if CoreDNS does not show them.
func opcodesOf(server *dnsserver.Server) map[int]bool {
	allowed := reflect.ValueOf(server).Elem().FieldByName("allowedOpcodes")
	if allowed.Kind() != reflect.Map || allowed.Type().Key().Kind() != reflect.Int {
		return nil
	}
	opcodes := map[int]bool{}
	for _, opcode := range allowed.MapKeys() {
		opcodes[int(opcode.Int())] = true
	}
	return opcodes
}

// isRoundRobin reports whether loadbalance gives every address the same chance. It does not tell, so its
// function is asked for its name; if that is another one some day, the fast path is off.
func isRoundRobin(h plugin.Handler) bool {
	lb, ok := h.(loadbalance.LoadBalance)
	if !ok {
		return false
	}
	shuffle := reflect.ValueOf(lb).FieldByName("shuffle")
	if !shuffle.IsValid() || shuffle.Kind() != reflect.Func {
		return false
	}
	f := runtime.FuncForPC(shuffle.Pointer())
	return f != nil && strings.HasSuffix(f.Name(), "/loadbalance.randomShuffle")
}
