package fastpath

import (
	"maps"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/dns64"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
)

// route is how queries for the names of a zone are answered and counted.
type route struct {
	keyspace uint32 // ID of the server block's Keyspace; 0 if the block has no fast path
	// byGeneration is false if another plugin of the block may answer before kubernetes: no generation ends that plugin's answers.
	byGeneration bool
	shuffle      bool
	kernel       bool   // the kernel may answer
	bufSize      uint16 // max. UDP size of a client, 0 for none
	local        bool   // plugin local answers names that begin with localhost
	logged       block.Logged
	dns64        *dns64.DNS64   // nil without the plugin
	rewrites     block.Rewrites // nil for none
	counters     *counters
	queue        *admission.Queue  // of queries without a stored answer
	search       block.Searches    // nil if names are not expanded
	awaiter      block.NameAwaiter // nil if no query waits for a name
	waits        block.WaitCounters
	wire         wirechain.Handler // nil if all queries without a stored answer go to the plugin chain
}

// routes are the routes of a server.
type routes struct {
	byZone map[string]*route // by zone in wire form and lower case
	depths []int             // numbers of labels of the zones, highest first
}

// find returns the route of the longest zone of a name, nil without one. The name is in wire form and lower case.
func (r *routes) find(name []byte) *route {
	var starts [128]uint8 // of the labels
	labels := 0
	for at := 0; name[at] != 0; at += 1 + int(name[at]) {
		starts[labels&127] = uint8(at) // #nosec G115 -- a name has at most 255 bytes
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

// add adds the route of a zone, unless the zone is no valid name.
func (r *routes) add(zone string, rt *route) {
	buf := make([]byte, 256)
	n, err := dns.PackDomainName(zone, buf, 0, nil, false)
	if err != nil {
		return
	}
	r.byZone[string(buf[:n])] = rt
	if depth := dns.CountLabel(zone); !slices.Contains(r.depths, depth) {
		r.depths = append(r.depths, depth)
		slices.SortFunc(r.depths, func(a, b int) int { return b - a })
	}
}

// newRoutes returns the routes of a server, given its server blocks by zone. A block's subzones with other metrics, cache,
// search lists or limits have routes of their own.
func newRoutes(server string, blocks map[string]*servedBlock) routes {
	r := routes{byZone: make(map[string]*route, len(blocks))}
	added := map[*servedBlock]bool{} // blocks whose subzones are added
	for zone, b := range blocks {
		r.add(zone, b.route(server, zone))
		if added[b] {
			continue
		}
		added[b] = true
		for _, subzone := range b.subzones() {
			if longest := block.ZoneOf(blocks, subzone); blocks[longest] == b && longest != subzone {
				r.add(subzone, b.route(server, subzone))
			}
		}
	}
	return r
}

// servedBlock is a server block on a server.
type servedBlock struct {
	*block.Block
	block.Eligibility
	prometheus *metrics.Metrics  // or nil
	next       string            // the plugin after prometheus, a label of its metrics
	cache      block.Cache       // or nil
	search     block.Searcher    // or nil
	awaiter    block.NameAwaiter // or nil
	wire       wirechain.Handler // or nil
	queue      *admission.Queue
	// The zones with labels of prometheus, with search lists, and those of a block.ZoneOwner.
	labelZones, searchZones map[string]bool
	ownQueues               map[string]*admission.Queue
}

// newServedBlock evaluates the plugins of a block.
func newServedBlock(places *admission.Places, b *block.Block) *servedBlock {
	sb := &servedBlock{Block: b, Eligibility: b.Eligibility(), queue: places.NewQueue(b.MaxConcurrent), ownQueues: map[string]*admission.Queue{}}
	if sb.Prevented == "" && b.Keyspace != nil {
		sb.wire, sb.queue.Capacity = b.WireHandler()
	}
	for _, h := range b.Handlers() {
		if a, ok := h.(block.NameAwaiter); ok && sb.awaiter == nil {
			sb.awaiter = a
		}
		switch h := h.(type) {
		case *metrics.Metrics:
			sb.prometheus, sb.labelZones = h, block.ZoneSet(h.ZoneNames())
			if h.Next != nil {
				sb.next = h.Next.Name()
			}
		case block.Cache:
			sb.cache = h
		case block.Searcher:
			sb.search, sb.searchZones = h, block.ZoneSet(h.SearchZones())
		case block.ZoneOwner:
			for _, zone := range h.OwnZones() {
				sb.ownQueues[zone] = places.NewQueue(b.MaxConcurrent)
			}
		}
	}
	return sb
}

// inKernel reports whether the kernel answers queries of the block.
func (b *servedBlock) inKernel() bool {
	return b.Kernel && b.Prevented == "" && b.Keyspace != nil && b.BufSize == 0 // the program uses the client's UDP size
}

// route returns the route of a zone whose names belong to the block.
func (b *servedBlock) route(server, zone string) *route {
	rt := &route{
		shuffle: b.Shuffle, kernel: b.inKernel(), byGeneration: b.ByGeneration, bufSize: b.BufSize, local: b.Local, logged: b.Log.Logged(zone), rewrites: b.Rewrites, dns64: b.DNS64,
		queue: b.queue, counters: &counters{server: server, plugin: b.next},
	}
	if own := b.ownQueues[block.ZoneOf(b.ownQueues, zone)]; own != nil {
		rt.queue = own
	}
	if b.cache != nil && b.cache.Covers(zone) {
		rt.counters.cache = b.cache
	}
	if b.Prevented == "" && (!b.Local || localZones.Matches(zone) == "") {
		if rt.awaiter = b.awaiter; rt.awaiter != nil {
			rt.waits = rt.awaiter.WaitCounters()
		}
		rt.keyspace = b.Keyspace.ID()
		if rt.counters.cache != nil && rt.queue == b.queue {
			rt.wire = b.wire
		}
		if b.search != nil && block.ZoneOf(b.searchZones, zone) != "" {
			rt.search = b.search.ServerSearches(server)
		}
	}
	if b.prometheus != nil {
		rt.counters.dns = true
		if rt.counters.zone = block.ZoneOf(b.labelZones, zone); rt.counters.zone == "" {
			rt.counters.zone = "."
		}
	}
	return rt
}

// localZones are the zones of plugin local, which answers before cache.
var localZones = plugin.Zones{"localhost.", "0.in-addr.arpa.", "127.in-addr.arpa.", "255.in-addr.arpa."}

// subzones returns the zones that may need a route of their own.
func (b *servedBlock) subzones() (zones []string) {
	if b.Local {
		zones = slices.Clone(localZones)
	}
	for _, r := range b.Log {
		zones = append(zones, r.Zone)
	}
	if b.cache != nil {
		zones = slices.Concat(zones, b.cache.Borders())
	}
	zones = slices.AppendSeq(slices.Clip(zones), maps.Keys(b.labelZones))
	zones = slices.AppendSeq(zones, maps.Keys(b.searchZones))
	return slices.AppendSeq(zones, maps.Keys(b.ownQueues))
}

// blocksOn returns the server blocks on a server by zone.
func blocksOn(places *admission.Places, conf *block.Configuration, server *dnsserver.Server) map[string]*servedBlock {
	byZone, byBlock := map[string]*servedBlock{}, map[*block.Block]*servedBlock{}
	for _, z := range conf.ServerZones(server.Addr) {
		b := byBlock[z.Block]
		if b == nil {
			b = newServedBlock(places, z.Block)
			byBlock[z.Block] = b
		}
		if other := byZone[z.Name]; other != nil { // blocks with the same zone have filters of plugin view
			b.Prevented = "plugin view has to see every query"
			other.Prevented = b.Prevented
		}
		byZone[z.Name] = b
	}
	prevented := block.ServerPrevents(server)
	for _, b := range byZone {
		if b.Prevented == "" {
			b.Prevented = prevented
		}
		if b.Prevented != "" {
			b.ByGeneration = false // only readers send such answers
		}
	}
	return byZone
}

// logZones logs the zones of a server that have a fast path, and for the others the reason why not. It reports whether any
// zone has a fast path. It logs nothing if no plugin stores answers.
func logZones(address string, blocks map[string]*servedBlock) bool {
	var with, sized []string
	without := map[string][]string{} // by reason
	stored := false
	for zone, b := range blocks {
		stored = stored || b.Keyspace != nil
		if b.Prevented == "" {
			with = append(with, zone)
			if b.Kernel && b.BufSize > 0 {
				sized = append(sized, zone)
			}
		} else {
			without[b.Prevented] = append(without[b.Prevented], zone)
		}
	}
	if !stored {
		return false
	}
	slices.Sort(with)
	if len(with) > 0 {
		log.Infof("%s: fast path for %s", address, strings.Join(with, " "))
	}
	if len(sized) > 0 {
		slices.Sort(sized)
		log.Warningf("%s: the kernel answers no queries for %s: plugin bufsize limits the UDP size of clients", address, strings.Join(sized, " "))
	}
	for _, reason := range slices.Sorted(maps.Keys(without)) {
		slices.Sort(without[reason])
		log.Infof("%s: no fast path for %s: %s", address, strings.Join(without[reason], " "), reason)
	}
	return len(with) > 0
}
