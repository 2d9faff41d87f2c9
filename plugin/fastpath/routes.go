package fastpath

import (
	"maps"
	"net"
	"slices"
	"strings"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"
)

// route is what a name leads to: a server block, and how an answer from there is given and counted.
type route struct {
	space    uint32 // 0 if the block has no fast path
	shuffle  bool
	counters *counters
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
	*Block
	use
	counting *metrics.Metrics // nil without prometheus
	next     string           // the plugin behind prometheus, which metrics name
	cache    Cache            // nil without one
}

// newRoutes returns the routes of a server. What is counted differently has a way of its own.
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
	to := &route{shuffle: b.shuffle, counters: &counters{server: server.Addr, plugin: b.next}}
	if b.cache != nil && b.cache.Covers(zone) {
		to.counters.cache = b.cache
	}
	if b.prevented == "" {
		to.space = b.Space.ID()
	}
	if b.counting != nil {
		to.counters.dns = true
		if to.counters.zone = plugin.Zones(b.counting.ZoneNames()).Matches(zone); to.counters.zone == "" {
			to.counters.zone = "."
		}
	}
	return to
}

// usesOn returns the blocks on a server by zone. Blocks that no plugin has asked a Block for are not
// among them; nothing is kept of what they answer.
func (conf *configuration) usesOn(server *dnsserver.Server) map[string]*blockUse {
	uses := map[string]*blockUse{}
	for _, b := range conf.blocks {
		var u *blockUse
		for _, config := range b.configs {
			for _, host := range b.configs[0].ListenHosts {
				if addressOf(config, host) != server.Addr {
					continue
				}
				if u == nil {
					u = newBlockUse(b)
				}
				uses[config.Zone] = u
			}
		}
	}
	return uses
}

// defaultMost is how many queries the chain works on at a time, for each listener; as many wait.
const defaultMost = 4096

// mostOf returns how many queries the chain works on at a time for a server.
func mostOf(uses map[string]*blockUse) (most int) {
	for _, u := range uses {
		most = max(most, u.most)
	}
	if most == 0 {
		return defaultMost
	}
	return most
}

// describe says once which zones of a server have a fast path, and what prevents it for the others. It
// reports whether any has it.
func describe(address string, uses map[string]*blockUse) bool {
	var with []string
	without := map[string][]string{}
	for zone, u := range uses {
		if u.prevented == "" {
			with = append(with, zone)
		} else {
			without[u.prevented] = append(without[u.prevented], zone)
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

// borders returns the zones at which it changes how names are counted.
func (b *blockUse) borders() (zones []string) {
	if b.counting != nil {
		zones = b.counting.ZoneNames()
	}
	if b.cache != nil {
		zones = slices.Concat(zones, b.cache.Borders())
	}
	return zones
}

// newBlockUse looks at a block on a server.
func newBlockUse(b *Block) *blockUse {
	u := &blockUse{Block: b, use: b.look()}
	for _, h := range b.configs[0].Handlers() {
		switch h := h.(type) {
		case *metrics.Metrics:
			u.counting = h
			if h.Next != nil {
				u.next = h.Next.Name()
			}
		case Cache:
			u.cache = h
		}
	}
	return u
}

// addressOf returns the address of a server as CoreDNS writes it, with its transport.
func addressOf(config *dnsserver.Config, host string) string {
	a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, config.Port))
	if err != nil {
		return ""
	}
	return config.Transport + "://" + a.String()
}
