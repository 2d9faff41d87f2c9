package fastpath

import (
	"maps"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// route is what a name leads to: a server block, and how an answer from there is given and counted.
type route struct {
	space    uint32 // 0 if the block has no fast path
	shuffle  bool
	counters *counters
	chain    *chain
	search   block.Searches // nil if names are not expanded
}

// routes lead from a name to the server block that CoreDNS chooses for it.
type routes struct {
	byZone map[string]*route // by the zone in wire form and lower case
	depths []int             // the numbers of labels that zones have, the greatest first
}

// find returns where a name leads, or nil. The name is in wire form and lower case.
func (r *routes) find(name []byte) *route {
	var starts [128]uint8
	labels := 0
	for at := 0; name[at] != 0; at += 1 + int(name[at]) {
		starts[labels&127] = uint8(at) // #nosec G115 -- a name has 255 bytes at most
		labels++
	}
	starts[labels&127] = uint8(len(name) - 1) // #nosec G115
	for _, depth := range r.depths {
		if depth > labels {
			continue
		}
		if found, ok := r.byZone[string(name[starts[labels-depth]:])]; ok {
			return found
		}
	}
	return nil
}

// add takes in where a zone leads. What can't be a zone leads nowhere.
func (r *routes) add(zone string, to *route) {
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(zone, buf, 0, nil, false)
	if err != nil {
		return
	}
	r.byZone[string(buf[:n])] = to
	if depth := dns.CountLabel(zone); !slices.Contains(r.depths, depth) {
		r.depths = append(r.depths, depth)
		slices.SortFunc(r.depths, func(a, b int) int { return b - a })
	}
}

// blockUse is a server block on a server.
type blockUse struct {
	*block.Block
	block.Eligibility
	counting *metrics.Metrics // nil without prometheus
	next     string           // the plugin behind prometheus, which metrics name
	cache    block.Cache      // nil without one
	search   block.Searcher   // nil without one
	chain    *chain
	own      map[string]*chain // for the zones that a plugin answers by itself
}

// newRoutes returns the routes of a server. What differs inside of a block has a way of its own.
func newRoutes(server *dnsserver.Server, blocks map[string]*blockUse) routes {
	r := routes{byZone: map[string]*route{}}
	zones := slices.Collect(maps.Keys(blocks))
	for zone, b := range blocks {
		r.add(zone, b.route(server, zone))
		for _, below := range b.borders() {
			if plugin.Zones(zones).Matches(below) == zone && below != zone {
				r.add(below, b.route(server, below))
			}
		}
	}
	return r
}

// route returns where names in a zone lead that belong to the block.
func (b *blockUse) route(server *dnsserver.Server, zone string) *route {
	to := &route{shuffle: b.Shuffle, chain: b.chain, counters: &counters{server: server.Addr, plugin: b.next}}
	if own := b.own[plugin.Zones(slices.Collect(maps.Keys(b.own))).Matches(zone)]; own != nil {
		to.chain = own
	}
	if b.cache != nil && b.cache.Covers(zone) {
		to.counters.cache = b.cache
	}
	if b.Prevented == "" {
		to.space = b.Keyspace.ID()
		if b.search != nil && plugin.Zones(b.search.SearchZones()).Matches(zone) != "" {
			to.search = b.search.SearchesOn(server.Addr)
		}
	}
	if b.counting != nil {
		to.counters.dns = true
		if to.counters.zone = plugin.Zones(b.counting.ZoneNames()).Matches(zone); to.counters.zone == "" {
			to.counters.zone = "."
		}
	}
	return to
}

// usesOn returns the server blocks on a server by zone.
func usesOn(conf *block.Configuration, server *dnsserver.Server) map[string]*blockUse {
	uses, byBlock := map[string]*blockUse{}, map[*dnsserver.Config]*blockUse{}
	for _, z := range conf.ZonesOn(server.Addr) {
		u := byBlock[z.Block.Config()]
		if u == nil {
			u = newBlockUse(z.Block)
			byBlock[z.Block.Config()] = u
		}
		if other := uses[z.Name]; other != nil { // with plugin view, whose blocks have filters
			u.Prevented = "plugin view has to see every query"
			other.Prevented = u.Prevented
		}
		uses[z.Name] = u
	}
	policy := block.ServerPrevents(server)
	for _, u := range uses {
		if u.Prevented == "" {
			u.Prevented = policy
		}
		if u.Prevented != "" {
			u.ByGeneration = false // no reader would give such an answer
		}
	}
	return uses
}

// keeps reports whether some server block has a plugin whose answers can be kept.
func keeps(uses map[string]*blockUse) bool {
	for _, u := range uses {
		if u.Keyspace != nil {
			return true
		}
	}
	return false
}

// describe says once which zones of a server have a fast path, and what prevents it for the others. It
// reports whether any has it. Where nothing could be kept, there is nothing to say.
func describe(address string, uses map[string]*blockUse) bool {
	if !keeps(uses) {
		return false
	}
	var with []string
	without := map[string][]string{}
	for zone, u := range uses {
		if u.Prevented == "" {
			with = append(with, zone)
		} else {
			without[u.Prevented] = append(without[u.Prevented], zone)
		}
	}
	slices.Sort(with)
	if len(with) > 0 {
		log.Infof("%s: fast path for %s", address, strings.Join(with, " "))
	}
	for _, reason := range slices.Sorted(maps.Keys(without)) {
		slices.Sort(without[reason])
		log.Infof("%s: no fast path for %s: %s", address, strings.Join(without[reason], " "), reason)
	}
	return len(with) > 0
}

// borders returns the zones at which it changes how names are counted, or what they wait for.
func (b *blockUse) borders() (zones []string) {
	if b.counting != nil {
		zones = b.counting.ZoneNames()
	}
	if b.cache != nil {
		zones = slices.Concat(zones, b.cache.Borders())
	}
	if b.search != nil {
		zones = slices.Concat(zones, b.search.SearchZones())
	}
	for zone := range b.own {
		zones = append(zones, zone)
	}
	return zones
}

// newBlockUse looks at a block on a server.
func newBlockUse(b *block.Block) *blockUse {
	u := &blockUse{Block: b, Eligibility: b.Eligibility(), chain: newChain(b.MaxConcurrent), own: map[string]*chain{}}
	for _, h := range b.Handlers() {
		switch h := h.(type) {
		case *metrics.Metrics:
			u.counting = h
			if h.Next != nil {
				u.next = h.Next.Name()
			}
		case block.Cache:
			u.cache = h
		case block.Searcher:
			u.search = h
		case block.Own:
			for _, zone := range h.OwnZones() {
				u.own[zone] = newChain(b.MaxConcurrent)
			}
		}
	}
	return u
}
