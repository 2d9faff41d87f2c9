package forward

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"sync/atomic"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	serverblock "github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// The values of the label type of leaks.
const (
	leakSearch  = "search"
	leakSingle  = "single_label"
	leakReverse = "private_reverse"
	leakSpecial = "special_use"
	leakCluster = "cluster"
)

// defaultClusterZones are the zones of a cluster with defaults, also without a plugin for them (the second one: KEP-1645).
var defaultClusterZones = []string{"cluster.local.", "clusterset.local."}

// leak is a series of the metric leaks.
type leak struct {
	kind, zone string
	counter    atomic.Pointer[prometheus.Counter]
}

func newLeak(kind, zone string) *leak { return &leak{kind: kind, zone: zone} }

// inc counts a query. The series exists from the first query on: most of the zones never have one.
func (l *leak) inc() {
	c := l.counter.Load()
	if c == nil {
		c = new(leaks.WithLabelValues(l.kind, l.zone))
		l.counter.Store(c)
	}
	(*c).Inc()
}

// suffix is a node of a tree of domain names, from the root downwards. A name belongs to the longest of its suffixes that has a
// role.
type suffix struct {
	below map[string]*suffix // by label, in lower case

	own     bool       // the stanza or its server block is for this zone
	local   *localZone // names are answered with private_names
	leak    *leak      // of names in a local or cluster zone
	search  *leak      // of the candidates of a search list
	cluster bool
}

// maxLabels is the maximum number of labels of a name, without the root.
const maxLabels = 127

// names are the suffixes by which a stanza recognizes names that should not be forwarded to outside resolvers.
type names struct {
	root   suffix
	single *leak // of names with one label; nil if the stanza is not for the root
}

// newNames returns the names of a stanza, nil for one whose queries do not go to outside resolvers. Zones are normalized.
func newNames(c *config, clusterZones, searchDomains []string) *names {
	if c.toClusterDNS {
		return nil
	}
	n, own := new(names), c.ownZones()
	ownSet := serverblock.ZoneSet(own)
	for i := range localZones {
		z := &localZones[i]
		if above, _ := dns.NextLabel(z.name, 0); serverblock.ZoneOf(ownSet, z.name[above:]) != "" {
			s := n.root.at(z.name)
			s.local, s.leak = z, newLeak(z.kind, z.name)
		}
	}
	if slices.Contains(own, ".") {
		n.single = newLeak(leakSingle, ".")
		n.addSearch(searchDomains, n.addCluster(append(slices.Clone(defaultClusterZones), clusterZones...)))
	}
	for _, zone := range own {
		n.root.at(zone).own = zone != "."
	}
	return n
}

// addCluster adds the cluster zones among the zones of plugins, and returns them: plugin kubernetes has reverse zones as well.
func (n *names) addCluster(zones []string) (added []string) {
	for _, zone := range zones {
		if zone == "." || searchlist.InZone(zone, "arpa.") {
			continue
		}
		s := n.root.at(zone)
		s.cluster, s.leak, s.search = true, newLeak(leakCluster, zone), newLeak(leakSearch, zone)
		added = append(added, zone)
	}
	return added
}

// addSearch adds search domains, except those in cluster zones, as in the resolv.conf of a pod.
func (n *names) addSearch(domains, clusterZones []string) {
	for _, domain := range domains {
		if domain == "." || slices.ContainsFunc(clusterZones, func(zone string) bool { return searchlist.InZone(domain, zone) }) {
			continue
		}
		n.root.at(domain).search = newLeak(leakSearch, domain)
	}
}

// defaultResolvConf has the search domains of the node for a stanza without a file: the kubelet writes them to it, in the host's
// network too, unless dnsPolicy of the pod is ClusterFirst.
const defaultResolvConf = "/etc/resolv.conf"

// readSearchDomains returns the search domains of the node: of the files in TO, or of defaultResolvConf.
func (c *config) readSearchDomains() (domains []string) {
	var files []string
	for _, t := range c.to {
		if t.file != "" {
			files = append(files, t.file)
		}
	}
	if len(files) == 0 {
		files = []string{defaultResolvConf}
	}
	for _, file := range files {
		search, err := searchlist.ReadResolvConf(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warningf("%v: leaks with the search domains of the node are not counted", err)
		}
		for _, domain := range search {
			if _, ok := dns.IsDomainName(domain); ok {
				domains = append(domains, plugin.Name(domain).Normalize())
			}
		}
	}
	return domains
}

// ownZones returns the zones that the stanza forwards, as far as the Corefile has them: those of the server block below the
// stanza's zone, and the stanza's zone below those of the server block.
func (c *config) ownZones() (own []string) {
	if len(c.blockZones) == 0 {
		return []string{c.from}
	}
	for _, zone := range c.blockZones {
		switch {
		case plugin.Name(c.from).Matches(zone):
			own = append(own, zone)
		case plugin.Name(zone).Matches(c.from):
			own = append(own, c.from)
		}
	}
	return own
}

// at returns the node of a zone, which it adds if it does not exist.
func (s *suffix) at(zone string) *suffix {
	packed := newZone(zone)
	var labels [maxLabels]uint8
	for _, at := range slices.Backward(offsetsOf(packed, &labels)) {
		var lower [wire.MaxLabel]byte
		label := string(lowerLabel(packed, at, &lower))
		if s.below == nil {
			s.below = map[string]*suffix{}
		}
		if s.below[label] == nil {
			s.below[label] = new(suffix)
		}
		s = s.below[label]
	}
	return s
}

// offsetsOf returns the offsets of the labels of a name in wire form, without the root label. Bytes behind the name are ignored.
func offsetsOf(name []byte, labels *[maxLabels]uint8) []uint8 {
	n := 0
	for at := 0; at < len(name) && name[at] != 0 && n < maxLabels; at += 1 + int(name[at]) {
		labels[n] = uint8(at) // #nosec G115 -- a name has at most 255 bytes
		n++
	}
	return labels[:n]
}

// lowerLabel returns the label at an offset of a name in lower case.
func lowerLabel(name []byte, at uint8, buf *[wire.MaxLabel]byte) []byte {
	lower := buf[:copy(buf[:], name[at+1:][:name[at]])]
	wire.LowerName(lower)
	return lower
}

// classify returns the series that counts queries for the name and type, nil if they may leave the cluster, and the local zone of
// the name, nil without one. The name is in wire form, in any case; bytes behind it are ignored.
func (n *names) classify(name []byte, qtype uint16) (l *leak, local *localZone) {
	var buf [maxLabels]uint8
	labels := offsetsOf(name, &buf)
	var lower [wire.MaxLabel]byte
	known := false
	s := &n.root
	for i, at := range slices.Backward(labels) {
		if s = s.below[string(lowerLabel(name, at, &lower))]; s == nil {
			break
		}
		before := labels[:i]
		if s.own || s.local != nil && i == 0 && qtype == dns.TypeDS { // DS is data of the parent zone, which validators need
			known, l, local = true, nil, nil
			continue
		}
		if s.local != nil {
			known, l, local = true, s.leak, s.local
		}
		switch {
		case s.cluster && isClusterName(name, before):
			known, l = true, s.leak
		case s.cluster, s.search != nil && isCandidate(name, before):
			known, l = true, s.search
		}
	}
	if !known && len(labels) == 1 && !isOfZone(qtype) {
		l = n.single
	}
	return l, local
}

// countLeak counts a query that should not leave the cluster. It is called when the query is set, with the name uncompressed.
func (x *exchange) countLeak() {
	if x.f.names == nil {
		return
	}
	name := x.plain[wire.HeaderLen:]
	end := wire.NameEnd(x.plain, wire.HeaderLen)
	if l, _ := x.f.names.classify(name, binary.BigEndian.Uint16(x.plain[end:])); l != nil {
		l.inc()
	}
}

// isOfZone reports whether resolvers query records of this type for each zone: also for top-level domains.
func isOfZone(qtype uint16) bool {
	switch qtype {
	case dns.TypeNS, dns.TypeSOA, dns.TypeDS, dns.TypeDNSKEY:
		return true
	}
	return false
}

// isClusterName reports whether the labels before a cluster zone have the form of names of the cluster: of namespaces, Services,
// endpoints, ports and pods (Kubernetes DNS-Based Service Discovery 1.1). Other names in the zone are candidates of a search list.
func isClusterName(name []byte, before []uint8) bool {
	if len(before) == 0 {
		return true
	}
	last := len(before) - 1
	var lower [wire.MaxLabel]byte
	switch string(lowerLabel(name, before[last], &lower)) {
	case "svc": // [[[_PORT.]_PROTOCOL.]SERVICE.]NAMESPACE, or ENDPOINT.SERVICE.NAMESPACE
		return last <= 3 || last == 4 && name[before[0]+1] == '_'
	case "pod": // ADDRESS.NAMESPACE
		return last <= 2
	case "dns-version":
		return last == 0
	}
	return false
}

// isCandidate reports whether the labels before a search domain seem to be a name of their own: two labels or more, the last one
// in the form of a top-level domain (RFC 3696 section 2), without digits and hyphens, which names of hosts often have.
func isCandidate(name []byte, before []uint8) bool {
	if len(before) < 2 {
		return false
	}
	var lower [wire.MaxLabel]byte
	top := lowerLabel(name, before[len(before)-1], &lower)
	if len(top) > 4 && string(top[:4]) == "xn--" {
		return true
	}
	return len(top) > 1 && !slices.ContainsFunc(top, func(c byte) bool { return c < 'a' || c > 'z' })
}
