package fastpath

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// slowRoutes is newRoutes in a form whose time grows with the third power of the number of zones.
func slowRoutes(server string, blocks map[string]*servedBlock) routes {
	r := routes{byZone: map[string]*route{}}
	zones := slices.Collect(maps.Keys(blocks))
	for zone, b := range blocks {
		r.add(zone, b.slowRoute(server, zone))
		for _, subzone := range b.subzones() {
			if plugin.Zones(zones).Matches(subzone) == zone && subzone != zone {
				r.add(subzone, b.slowRoute(server, subzone))
			}
		}
	}
	return r
}

// slowRoute is route with the fields that depend on zones.
func (b *servedBlock) slowRoute(server, zone string) *route {
	matches := func(zones map[string]bool) string {
		return plugin.Zones(slices.Collect(maps.Keys(zones))).Matches(zone)
	}
	rt := &route{logged: b.Log.Logged(zone), queue: b.queue, counters: &counters{server: server, zone: matches(b.labelZones)}}
	if rt.counters.zone == "" {
		rt.counters.zone = "."
	}
	if own := b.ownQueues[plugin.Zones(slices.Collect(maps.Keys(b.ownQueues))).Matches(zone)]; own != nil {
		rt.queue = own
	}
	if b.cache.Covers(zone) {
		rt.counters.cache = b.cache
	}
	if !b.Local || localZones.Matches(zone) == "" {
		rt.keyspace = b.Keyspace.ID()
		if matches(b.searchZones) != "" {
			rt.search = b.search.ServerSearches(server)
		}
	}
	return rt
}

// zonedCache covers the names in some zones.
type zonedCache struct {
	*countedCache
	zones plugin.Zones
}

func (c zonedCache) Borders() []string       { return c.zones }
func (c zonedCache) Covers(name string) bool { return c.zones.Contains(name) }

// searcher has the search lists of listed.
type searcher struct{ block.Searcher }

func (searcher) ServerSearches(string) block.Searches { return listed{} }

// TestRoutes_Oracle compares the routes of random server blocks with those of slowRoutes.
func TestRoutes_Oracle(t *testing.T) {
	property.Seeds(t, 1, 100, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 3))
		pool := []string{"."}
		for range 40 {
			pool = append(pool, strings.ToLower(randomName(random, append(pool, localZones...))))
		}
		some := func() (zones []string) {
			for range random.IntN(4) * random.IntN(4) {
				zones = append(zones, pool[random.IntN(len(pool))])
			}
			return zones
		}
		blocks := map[string]*servedBlock{}
		for range 1 + random.IntN(3) {
			b := randomBlock(random, some)
			t.Cleanup(b.Keyspace.Drop)
			for _, zone := range append(some(), pool[random.IntN(len(pool))]) {
				blocks[zone] = b
			}
		}
		fast, slow := newRoutes("server", blocks), slowRoutes("server", blocks)
		if len(fast.byZone) != len(slow.byZone) || !slices.Equal(fast.depths, slow.depths) {
			t.Fatalf("%d routes, want %d", len(fast.byZone), len(slow.byZone))
		}
		for zone, want := range slow.byZone {
			if got := fast.byZone[zone]; !got.equal(want) {
				t.Fatalf("the route of zone %q is %+v, want %+v", zone, got, want)
			}
		}
		for range 100 {
			name, packed := strings.ToLower(randomName(random, pool)), make([]byte, 256)
			zone := plugin.Zones(slices.Collect(maps.Keys(blocks))).Matches(name)
			n, err := dns.PackDomainName(name, packed, 0, nil, false)
			if err != nil || zone == "" {
				continue
			}
			if got, want := fast.find(packed[:n]), blocks[zone].slowRoute("server", name); !got.equal(want) {
				t.Fatalf("the route of %s is %+v, want %+v", name, got, want)
			}
		}
	})
}

// equal compares the fields that slowRoute sets.
func (r *route) equal(o *route) bool {
	return r != nil && r.queue == o.queue && r.keyspace == o.keyspace && r.logged == o.logged && r.search == o.search &&
		r.counters.zone == o.counters.zone && r.counters.cache == o.counters.cache
}

// randomBlock returns a server block whose plugins have some zones.
func randomBlock(random *rand.Rand, some func() []string) *servedBlock {
	b := &servedBlock{
		Block: &block.Block{Keyspace: store.Shared.NewKeyspace()}, prometheus: metrics.New(""), search: searcher{}, queue: process.places.NewQueue(1),
		cache: &zonedCache{newCountedCache(), some()}, ownQueues: map[string]*admission.Queue{},
		labelZones: block.ZoneSet(some()), searchZones: block.ZoneSet(some()),
	}
	b.Local = random.IntN(2) == 0
	for _, zone := range some() {
		b.Log = append(b.Log, block.LogRule{Zone: zone, Logged: block.LoggedData})
	}
	for _, zone := range some() {
		b.ownQueues[zone] = process.places.NewQueue(1)
	}
	return b
}
