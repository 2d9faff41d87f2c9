package dnssec

import (
	"fmt"
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

// lines returns records as text, sorted. Upper case does not count: CoreDNS has the letters of the question in NSEC records.
func lines(section []dns.RR) (all []string) {
	for _, rr := range section {
		rr = dns.Copy(rr)
		switch rr := rr.(type) {
		case *dns.OPT:
			continue
		case *dns.RRSIG:
			rr.Signature, rr.Inception, rr.Expiration = "", 0, 0
		case *dns.SOA:
			rr.Serial = 0
		}
		all = append(all, strings.ToLower(strings.Join(strings.Fields(rr.String()), " ")))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// verify verifies the signatures of a reply with the keys that the server has, by zone.
func verify(m *dns.Msg, keys map[string][]*dns.DNSKEY) (n int, err error) {
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			signature, ok := rr.(*dns.RRSIG)
			if !ok {
				continue
			}
			n++
			rrset := slices.DeleteFunc(slices.Clone(section), func(rr dns.RR) bool {
				h := rr.Header()
				return !strings.EqualFold(h.Name, signature.Hdr.Name) || h.Rrtype != signature.TypeCovered
			})
			i := slices.IndexFunc(keys[signature.SignerName], func(k *dns.DNSKEY) bool { return k.KeyTag() == signature.KeyTag })
			switch {
			case i < 0:
				return n, fmt.Errorf("%s: no such key", signature)
			case !signature.ValidityPeriod(time.Now()):
				return n, fmt.Errorf("%s: not valid now", signature)
			}
			if err := signature.Verify(keys[signature.SignerName][i], rrset); err != nil {
				return n, fmt.Errorf("%s: %w", signature, err)
			}
		}
	}
	return n, nil
}

// keysOf returns the keys that the server answers for zones.
func keysOf(t *testing.T, p *daemon.Process, zones ...string) map[string][]*dns.DNSKEY {
	t.Helper()
	all := map[string][]*dns.DNSKEY{}
	for _, zone := range zones {
		for _, rr := range ask(t, p, zone, dns.TypeDNSKEY, false).Answer {
			all[zone] = append(all[zone], rr.(*dns.DNSKEY))
		}
	}
	return all
}

const (
	clusterZone = "cluster.local."
	// otherCluster is a difference of plugin kubernetes, which test/differential explains. The signed replies differ as well.
	otherCluster = "another reply of plugin kubernetes"
)

// question is a question to both servers, in a zone.
type question struct {
	zone, name string
	qtype      uint16
}

func questions() (all []question) {
	names := map[string][]string{clusterZone: {
		"", "web.shop.svc.", "Web.shop.svc.", "none.shop.svc.", "shop.svc.", "svc.", "pods.shop.svc.", "a.pods.shop.svc.", "_http._tcp.web.shop.svc.", "outside.shop.svc.",
		"ns.dns.", "dns-version.", "none.",
	}}
	for _, zone := range []string{"example.org.", "common.test.", "other.test.", "two.test."} {
		names[zone] = owners
	}
	for zone, relative := range names {
		for _, name := range relative {
			for _, qtype := range queried {
				all = append(all, question{zone, name + zone, qtype})
			}
		}
	}
	for _, qtype := range queried {
		all = append(all, question{"example.org.", "insecure.example.org.", qtype}, question{"example.org.", "secure.example.org.", qtype},
			question{"example.org.", "none.secure.example.org.", qtype}, question{"", "example.net.", qtype},
			question{clusterZone, "1.0.96.10.in-addr.arpa.", qtype}, question{clusterZone, "none.in-addr.arpa.", qtype})
	}
	return all
}

// explanations are the differences to CoreDNS, as the README of the plugin has them. apply changes a reply of CoreDNS, or of
// clusterdns, to that of the other server.
var explanations = []struct {
	name  string
	apply func(q question, stock, ours *dns.Msg)
}{
	{"the NSEC record of a delegation has its name", func(_ question, stock, _ *dns.Msg) {
		i := slices.IndexFunc(stock.Ns, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeNS })
		if i < 0 || len(stock.Answer) > 0 {
			return
		}
		cut := stock.Ns[i].Header().Name
		first, rest, _ := strings.Cut(cut, ".")
		for _, rr := range stock.Ns {
			switch rr := rr.(type) {
			case *dns.NSEC:
				rr.Hdr.Name, rr.NextDomain = cut, first+`\000.`+rest
			case *dns.RRSIG:
				rr.Hdr.Name, rr.Labels = cut, uint8(dns.CountLabel(cut))
			}
		}
	}},
	{"the answer to NSEC has the signatures of all keys", func(q question, stock, ours *dns.Msg) {
		if q.zone != "two.test." || q.qtype != dns.TypeNSEC {
			return
		}
		ours.Answer = slices.DeleteFunc(ours.Answer, func(rr dns.RR) bool {
			s, ok := rr.(*dns.RRSIG)
			return ok && s.TypeCovered == dns.TypeNSEC && !slices.Contains(lines(stock.Answer), lines([]dns.RR{rr})[0])
		})
	}},
}

// TestParity asks CoreDNS and clusterdns the same questions, clusterdns twice: the second reply has stored signatures.
func TestParity(t *testing.T) {
	api := kubeapi.New(t)
	kit.Must(t, api.Replace(objects()...))
	z := newZones(t)
	text := strings.ReplaceAll(z.corefile, "API", api.URL())
	stock, ours := daemon.Start(t, controlplane.RequireBinary(t, "coredns"), text), daemon.Start(t, daemon.Program(t, "clusterdns"), text)
	for _, p := range []*daemon.Process{stock, ours} {
		// CoreDNS answers before it has read all resources, if that takes more than five seconds.
		for _, name := range []string{"web.shop.svc.cluster.local.", "a.pods.shop.svc.cluster.local.", "outside.shop.svc.cluster.local."} {
			awaitServed(t, p, name)
		}
	}
	keys := keysOf(t, ours, "example.org.", "secure.example.org.", "common.test.", "other.test.", "two.test.", clusterZone)
	used := map[string]int{}
	signatures, failures := 0, 0
	for _, q := range questions() {
		for _, do := range []bool{false, true} {
			theirs := ask(t, stock, q.name, q.qtype, do)
			first, second := ask(t, ours, q.name, q.qtype, do), ask(t, ours, q.name, q.qtype, do)
			if summary(first) != summary(second) {
				t.Errorf("%s %s, do %t: %s\nlater %s", q.name, dns.Type(q.qtype), do, summary(first), summary(second))
			}
			for _, reply := range []*dns.Msg{first, second} {
				n, err := verify(reply, keys)
				if err != nil || n > 0 && !do {
					t.Errorf("%s %s, do %t: %d signatures, %v", q.name, dns.Type(q.qtype), do, n, err)
					failures++
				}
				signatures += n
			}
			name, ok := explain(q, theirs, first)
			if !ok && !do && q.zone == clusterZone {
				used[otherCluster]++
				break
			}
			if used[name]++; !ok {
				t.Errorf("%s %s, do %t\nCoreDNS: %s\nclusterdns: %s", q.name, dns.Type(q.qtype), do, summary(theirs), summary(first))
				failures++
			}
			if failures > 10 {
				t.FailNow()
			}
		}
	}
	t.Logf("%d questions, %d signatures; replies: %v", len(questions()), signatures, used)
	for _, e := range explanations {
		if used[e.name] == 0 && !t.Failed() {
			t.Errorf("allowed, but not seen any more: %s", e.name)
		}
	}
	t.Run("transfer", func(t *testing.T) { compareTransfers(t, stock, ours) })
}

// explain reports whether replies are the same, or differ for a reason, which has a name.
func explain(q question, stock, ours *dns.Msg) (name string, ok bool) {
	if summary(stock) == summary(ours) {
		return "the same", true
	}
	for _, e := range explanations {
		theirs, own := stock.Copy(), ours.Copy()
		e.apply(q, theirs, own)
		if summary(theirs) == summary(own) {
			return e.name, true
		}
	}
	return "", false
}

// compareTransfers transfers a zone with and without a request for signatures: clusterdns signs none. CoreDNS has signatures behind
// the last SOA record, at which the transfer ends.
func compareTransfers(t *testing.T, stock, ours *daemon.Process) {
	transfer := func(p *daemon.Process, do bool) []dns.RR {
		m := new(dns.Msg).SetAxfr("example.org.")
		m.SetEdns0(4096, do)
		client := dns.Client{Net: "tcp", Timeout: 10 * time.Second}
		reply, _, err := client.Exchange(m, p.Addr)
		kit.Must(t, err)
		return reply.Answer
	}
	want := lines(transfer(stock, false))
	for _, do := range []bool{false, true} {
		got := transfer(ours, do)
		if !slices.Equal(lines(got), want) {
			t.Errorf("do %t: %d records, want %d", do, len(got), len(want))
		}
		if _, ok := got[len(got)-1].(*dns.SOA); !ok {
			t.Errorf("do %t: the last record is %s", do, got[len(got)-1])
		}
	}
	signed := transfer(stock, true)
	if _, ok := signed[len(signed)-1].(*dns.SOA); ok {
		t.Error("CoreDNS signs no transfers any more: remove the difference")
	}
}

// objects are the Services of a cluster.
func objects() []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: "shop", Name: "web"}
	ready := true
	return []runtime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pods"}, Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "outside"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.net"}},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "pods-1", Labels: map[string]string{discoveryv1.LabelServiceName: "pods"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints: []discoveryv1.Endpoint{
				{Addresses: []string{"10.244.0.1"}, Hostname: &[]string{"a"}[0], Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
				{Addresses: []string{"10.244.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
			},
			Ports: []discoveryv1.EndpointPort{{Name: &[]string{"http"}[0], Port: &[]int32{80}[0], Protocol: &[]corev1.Protocol{corev1.ProtocolTCP}[0]}},
		},
	}
}
