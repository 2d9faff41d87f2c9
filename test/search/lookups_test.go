//go:build linux

package search

import (
	"fmt"
	"strings"
	"sync/atomic"
)

// Positions of names that are not found by a suffix of the search list.
const (
	nowhere = -1 // all candidates are queried
	asIs    = -2 // the name itself is queried first
)

// lookup is a name and its answer by every resolver, with and without expansion by the server.
type lookup struct {
	name      string // # is replaced by a unique number
	v4, v6    string // addresses, sorted
	canonical string
	at        int // index of the suffix with which it exists; the number of suffixes for the bare name
	// noData marks a name that exists with an earlier suffix, without data, so that a resolver that stops there finds
	// nothing, unless the server expands the list.
	noData bool
}

// noSuffix is the position of the bare name: the number of suffixes of a pod's search list with the policy ClusterFirst.
const noSuffix = 4

// common are the lookups of a pod in the namespace shop, with the policy ClusterFirst.
var common = []lookup{
	{name: "dual", v4: "10.96.1.1", v6: "fd00:96::101", canonical: "dual.shop.svc.cluster.local"},
	{name: "web", v4: "10.96.1.2", canonical: "web.shop.svc.cluster.local"},
	{name: "sixth", v6: "fd00:96::103", canonical: "sixth.shop.svc.cluster.local"},
	{name: "db", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local"},
	{name: "e1.db", v4: "10.0.1.2", canonical: "e1.db.shop.svc.cluster.local"},
	{name: "WEB", v4: "10.96.1.2", canonical: "web.shop.svc.cluster.local"},
	{name: "web.bank", v4: "10.96.2.2", canonical: "web.bank.svc.cluster.local", at: 1},
	{name: "search", v4: "10.96.1.8", canonical: "search.shop.svc.cluster.local"},
	{name: "v1", v4: "10.96.1.9", canonical: "v1.shop.svc.cluster.local"},
	{name: "db.shop", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local", at: 1},
	{name: "db.shop.svc", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local", at: 2},
	{name: "db.shop.svc.cluster.local", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local", at: noSuffix},
	{name: "db.shop.svc.cluster.local.", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local", at: asIs},
	{name: "abroad", v4: "192.0.2.3", v6: "2001:db8::3", canonical: "target-0.outside.example"},
	{name: "abroad.shop", v4: "192.0.2.3", v6: "2001:db8::3", canonical: "target-0.outside.example", at: 1},
	{name: "inland", v4: "10.0.1.1 10.0.1.2", v6: "fd01:1::1", canonical: "db.shop.svc.cluster.local"},
	{name: "intra-#", v4: "192.0.2.11", v6: "2001:db8::11", canonical: "intra-#.corp.example", at: 3},
	{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: noSuffix},
	{name: "four-#.outside.example", v4: "192.0.2.2", canonical: "four-#.outside.example", at: noSuffix},
	{name: "six-#.outside.example", v6: "2001:db8::2", canonical: "six-#.outside.example", at: noSuffix},
	{name: "alias-#.outside.example", v4: "192.0.2.3", v6: "2001:db8::3", canonical: "target-0.outside.example", at: noSuffix},
	{name: "bare-#", v4: "192.0.2.32", canonical: "bare-#", at: noSuffix},
	{name: "both-#.outside.example.", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: asIs},
	{name: "shop", v4: "192.0.2.12", canonical: "shop.corp.example", at: 3, noData: true}, // shop.svc.cluster.local exists
	{name: "empty-#.outside.example", at: nowhere},
	{name: "missing-#", at: nowhere},
	{name: "missing-#.outside.example", at: nowhere},
	{name: "vault", at: nowhere},
}

// inBank are lookups of a pod in the namespace bank.
var inBank = []lookup{
	{name: "web", v4: "10.96.2.2", canonical: "web.bank.svc.cluster.local"},
	{name: "vault", v4: "10.0.2.1", canonical: "vault.bank.svc.cluster.local"},
	{name: "dual", at: nowhere},
	{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: noSuffix},
}

// withExtra are lookups of a pod in the namespace shop that searches extra.example as well.
var withExtra = []lookup{
	{name: "only-#", v4: "192.0.2.21", v6: "2001:db8::21", canonical: "only-#.extra.example", at: 4},
	{name: "intra-#", v4: "192.0.2.11", v6: "2001:db8::11", canonical: "intra-#.corp.example", at: 3},
	{name: "web", v4: "10.96.1.2", canonical: "web.shop.svc.cluster.local"},
	{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: 5},
}

// ownList are lookups of a pod that searches shop.svc.cluster.local and extra.example, by the policy None.
var ownList = []lookup{
	{name: "only-#", v4: "192.0.2.21", v6: "2001:db8::21", canonical: "only-#.extra.example", at: 1},
	{name: "intra-#", v4: "192.0.2.22", v6: "2001:db8::22", canonical: "intra-#.extra.example", at: 1},
	{name: "web", v4: "10.96.1.2", canonical: "web.shop.svc.cluster.local"},
	{name: "both-#.outside.example", v4: "192.0.2.1", v6: "2001:db8::1", canonical: "both-#.outside.example", at: 2},
	{name: "web.bank", v4: "192.0.2.31", canonical: "web.bank", at: 2},
}

// lookups is the last unique number.
var lookups atomic.Int64

// next returns the lookup with a unique number.
func (l lookup) next() lookup {
	number := fmt.Sprint(lookups.Add(1))
	l.name, l.canonical = strings.ReplaceAll(l.name, "#", number), strings.ReplaceAll(l.canonical, "#", number)
	return l
}

// want returns the outcome for a resolver. expanded is set if the server expands the search list.
func (l lookup) want(r resolver, family string, expanded bool) outcome {
	found := strings.TrimSpace(map[string]string{"any": l.v4 + " " + l.v6, "4": l.v4, "6": l.v6}[family])
	if found == "" || l.noData && r.stopsAtNoData && !expanded {
		return outcome{failure: "none"}
	}
	return outcome{addresses: found, canonical: l.canonical}
}

// packets returns the number of packets for a successful lookup by a pod with this number of suffixes.
func (l lookup) packets(family string, suffixes int, expanded bool) int {
	names := l.at + 1
	switch {
	case l.at == nowhere:
		names = suffixes + 1
	case l.at == asIs, expanded:
		names = 1
	}
	return names * len(types(family))
}
