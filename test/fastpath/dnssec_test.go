//go:build linux

package fastpath

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// signedZone is the zone that plugin dnssec signs.
const signedZone = "cluster.local."

// zoneKeys are the keys of the zone by tag.
type zoneKeys map[uint16]*dns.DNSKEY

// newZoneKeys writes one key for each of the flags, and returns the directive with them.
func newZoneKeys(t *testing.T, flags ...uint16) (keys zoneKeys, directive string) {
	t.Helper()
	folder := t.TempDir()
	keys = zoneKeys{}
	directive = "dnssec " + signedZone + " {\nkey file"
	for _, f := range flags {
		k := &dns.DNSKEY{
			Hdr:   dns.RR_Header{Name: signedZone, Rrtype: dns.TypeDNSKEY, Class: dns.ClassINET, Ttl: 3600},
			Flags: f, Protocol: 3, Algorithm: dns.ECDSAP256SHA256,
		}
		private, err := k.Generate(256)
		kit.Must(t, err)
		path := filepath.Join(folder, fmt.Sprintf("K%s+%03d+%05d", signedZone, k.Algorithm, k.KeyTag()))
		for suffix, text := range map[string]string{".key": k.String() + "\n", ".private": k.PrivateKeyString(private)} {
			kit.Write(t, path+suffix, text)
		}
		keys[k.KeyTag()] = k
		directive += " " + path
	}
	return keys, directive + "\n}"
}

// check returns the error of a reply to a query with DO, nil for a valid one: every RRset of the zone has a signature, and all
// signatures are valid as long as the reply may be stored.
func (keys zoneKeys) check(m *dns.Msg) error {
	if m.Truncated || m.Rcode != dns.RcodeSuccess {
		return fmt.Errorf("code %s, truncated %t", dns.RcodeToString[m.Rcode], m.Truncated)
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		sets := map[string][]dns.RR{}
		signatures := map[string][]*dns.RRSIG{}
		setName := func(rr dns.RR, rrtype uint16) string {
			return dns.CanonicalName(rr.Header().Name) + " " + dns.TypeToString[rrtype]
		}
		for _, rr := range section {
			switch rr := rr.(type) {
			case *dns.OPT:
			case *dns.RRSIG:
				signatures[setName(rr, rr.TypeCovered)] = append(signatures[setName(rr, rr.TypeCovered)], rr)
			default:
				if dns.IsSubDomain(signedZone, rr.Header().Name) {
					sets[setName(rr, rr.Header().Rrtype)] = append(sets[setName(rr, rr.Header().Rrtype)], rr)
				}
			}
		}
		for name, set := range sets {
			if len(signatures[name]) == 0 {
				return fmt.Errorf("%s has no signature", name)
			}
			for _, s := range signatures[name] {
				if err := keys.verify(s, set); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			delete(signatures, name)
		}
		if len(signatures) > 0 {
			return fmt.Errorf("signatures without records: %v", signatures)
		}
	}
	return keys.checkDenial(m)
}

func (keys zoneKeys) verify(s *dns.RRSIG, set []dns.RR) error {
	key := keys[s.KeyTag]
	if key == nil {
		return fmt.Errorf("unknown key %d", s.KeyTag)
	}
	if err := s.Verify(key, set); err != nil {
		return err
	}
	ttl := set[0].Header().Ttl
	if s.Hdr.Ttl != ttl || ttl > s.OrigTtl {
		return fmt.Errorf("TTL %d of the signature and %d of the records, original TTL %d", s.Hdr.Ttl, ttl, s.OrigTtl)
	}
	for _, at := range []time.Time{time.Now(), time.Now().Add(24 * time.Hour)} { // longer than any TTL and stale answers
		if !s.ValidityPeriod(at) {
			return fmt.Errorf("not valid at %s: %s", at.UTC(), s)
		}
	}
	return nil
}

// checkDenial returns an error if a reply without data has no proof that there are none.
func (keys zoneKeys) checkDenial(m *dns.Msg) error {
	if len(m.Answer) > 0 {
		return nil
	}
	q := m.Question[0]
	for _, rr := range m.Ns {
		if n, ok := rr.(*dns.NSEC); ok && strings.EqualFold(n.Hdr.Name, q.Name) && !slices.Contains(n.TypeBitMap, q.Qtype) {
			return nil
		}
	}
	return fmt.Errorf("no proof that there is no %s of %s", dns.Type(q.Qtype), q.Name)
}

// unsigned returns the records of a reply as text, without signatures, TTLs and the serial.
func unsigned(m *dns.Msg) string {
	all := []string{dns.RcodeToString[m.Rcode]}
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			rr = dns.Copy(rr)
			rr.Header().Ttl, rr.Header().Name = 0, strings.ToLower(rr.Header().Name)
			switch rr := rr.(type) {
			case *dns.OPT, *dns.RRSIG:
				continue
			case *dns.SOA:
				rr.Serial, rr.Refresh, rr.Retry, rr.Expire, rr.Minttl = 0, 0, 0, 0, 0
			case *dns.NSEC:
				rr.NextDomain = strings.ToLower(rr.NextDomain)
			}
			all = append(all, fmt.Sprint(i, " ", rr))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// signedObjects are the objects of the cluster that is signed.
func signedObjects() []runtime.Object {
	const ns = "shop"
	service := func(name, ip string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}}
	}
	alias := service("alias", "")
	alias.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.org"}
	name, port, protocol := "http", int32(80), corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}}, {Addresses: []string{"10.244.1.2"}}, {Addresses: []string{"10.244.1.3"}}},
	}
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
		service("web", "10.96.1.1"), service("db", corev1.ClusterIPNone), slice, alias,
	}
}

// changed returns a Service that is new in a round.
func changed(round int) *corev1.Service {
	ip := fmt.Sprintf("10.96.%d.%d", 100+round/250, 1+round%250)
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("new-%d", round)}, Spec: corev1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}}
}

// serialOf returns the serial in a denial of a new name.
func serialOf(t *testing.T, s *server, name string) uint32 {
	t.Helper()
	m := unpack(t, dial(t, "udp", "127.0.0.1", s).ask(t, pack(t, newQuery(name, dns.TypeA))))
	if len(m.Ns) == 1 {
		if soa, ok := m.Ns[0].(*dns.SOA); ok {
			return soa.Serial
		}
	}
	t.Fatalf("no SOA record alone in\n%v", m)
	return 0
}

// awaitName waits until a name exists. Each query has another type, since denials are cached.
func awaitName(t *testing.T, s *server, name string) {
	t.Helper()
	udp, qtype := dial(t, "udp", "127.0.0.1", s), uint16(65280)
	kit.Eventually(t, name+" exists", func() bool {
		qtype++
		return unpack(t, udp.ask(t, pack(t, newQuery(name, qtype)))).Rcode == dns.RcodeSuccess
	})
}

func unpack(t *testing.T, b []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(b))
	return m
}

// TestSigned has plugin dnssec in the server block: the replies of clusterdns, of a node cache in front of it and of CoreDNS validate and have the same records, also
// those that are repeated, and those that were stored before the cluster changed and the serial of the zone advanced.
func TestSigned(t *testing.T) {
	coredns := controlplane.RequireBinary(t, "coredns")
	api := kubeapi.New(t)
	kit.Must(t, api.Replace(signedObjects()...))
	questions := []dns.Question{
		{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeAAAA},
		{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeTXT},
		{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeSRV},
		{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeNSEC},
		{Name: "_http._tcp.db.shop.svc.cluster.local.", Qtype: dns.TypeSRV},
		{Name: "db.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "10-244-1-2.db.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "alias.shop.svc.cluster.local.", Qtype: dns.TypeCNAME},
		{Name: "none.shop.svc.cluster.local.", Qtype: dns.TypeA},
		{Name: "none.shop.svc.cluster.local.", Qtype: dns.TypeHTTPS},
		{Name: "www.example.org.shop.svc.cluster.local.", Qtype: dns.TypeAAAA},
		{Name: "cluster.local.", Qtype: dns.TypeSOA},
		{Name: "cluster.local.", Qtype: dns.TypeA},
		{Name: "cluster.local.", Qtype: dns.TypeDNSKEY},
	}
	for _, tc := range []struct {
		name string
		keys []uint16
		more string
	}{
		{"one key", []uint16{257}, ""},
		{"a key of each kind, in random order", []uint16{256, 257}, "loadbalance"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			keys, directive := newZoneKeys(t, tc.keys...)
			corefile := strings.NewReplacer("DNSSEC", directive, "MORE", tc.more, "API", api.URL()).Replace(`.:PORT {
    bind 127.0.0.1
    errors
    prometheus METRICS
    MORE
    cache 3600
    DNSSEC
    kubernetes cluster.local {
        endpoint API
        ttl 60
    }
}
`)
			ours := start(t, "clusterdns", corefile)
			stock := &server{metrics: fmt.Sprintf("127.0.0.1:%d", daemon.FreePort(t))}
			stock.Process = daemon.Start(t, coredns, stock.fill(corefile))
			node := start(t, "nodecache", strings.Replace(`cluster.local:PORT {
    bind 127.0.0.1
    prometheus METRICS
    cache 3600
    forward . UPSTREAM
}
`, "UPSTREAM", ours.Addr, 1))
			kit.Eventually(t, "the fast path is on", func() bool { return strings.Contains(ours.Output(), ": fast path for .") })
			for _, s := range []*server{ours, stock} {
				awaitName(t, s, "10-244-1-2.db.shop.svc.cluster.local.")
				awaitName(t, s, "web.shop.svc.cluster.local.")
			}
			// ask sends all questions twice, in both cases and over both protocols.
			ask := func(when string, questions []dns.Question) {
				for _, network := range []string{"udp", "tcp"} {
					to := map[*server]*wire{}
					for _, s := range []*server{ours, stock, node} {
						to[s] = dial(t, network, "127.0.0.1", s)
					}
					for _, q := range questions {
						for i, name := range []string{q.Name, q.Name, mixCase(q.Name), q.Name} {
							replies := map[*server]*dns.Msg{}
							for s, w := range to {
								m := newQuery(name, q.Qtype)
								m.SetEdns0(4096, true)
								replies[s] = unpack(t, w.ask(t, pack(t, m)))
								if err := keys.check(replies[s]); err != nil {
									t.Errorf("%s, %s over %s, query %d: %v in\n%v", when, s.Addr, network, i, err, replies[s])
								}
							}
							for s, reply := range replies {
								if a, b := unsigned(reply), unsigned(replies[stock]); a != b {
									t.Errorf("%s, %s over %s, query %d of %s %s:\n%s\nCoreDNS:\n%s", when, s.Addr, network, i, name, dns.Type(q.Qtype), a, b)
								}
							}
						}
					}
				}
			}
			before := map[*server]daemon.Samples{ours: ours.scrape(t), node: node.scrape(t)}
			ask("at first", questions)
			serial := serialOf(t, ours, "x.shop.svc.cluster.local.")
			round := 0
			kit.Eventually(t, "the serial advances", func() bool {
				round++
				kit.Must(t, api.Put(changed(round)))
				return serialOf(t, ours, fmt.Sprintf("x%d.shop.svc.cluster.local.", round)) > serial
			})
			latest := fmt.Sprintf("new-%d.shop.svc.cluster.local.", round)
			for _, s := range []*server{ours, stock} {
				awaitName(t, s, latest)
			}
			questions := append(slices.Clip(questions), dns.Question{Name: latest, Qtype: dns.TypeA})
			ask("after a change", questions)
			queries := float64(2 * 2 * 4 * len(questions))
			for s, since := range before {
				if hits := s.scrape(t).Since(since).Sum(answeredTotal); hits < queries/3 {
					t.Errorf("%s: the fast path has answered %v of %v queries, want at least a third", s.Addr, hits, queries)
				}
				if strings.Contains(s.Output(), "DATA RACE") {
					t.Error("a data race, see the output")
				}
			}
		})
	}
}
