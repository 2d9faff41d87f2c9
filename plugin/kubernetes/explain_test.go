package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// explainedQuery is a query with a trace: "name TYPE" in the zone cluster.local.
type explainedQuery struct {
	question string
	from     string   // 192.0.2.1 if empty
	option   []byte   // of the caller
	list     []string // search list
	node     string   // of the explained query
}

// send sends the query with a trace, and returns the reply, nil without one.
func (q explainedQuery) send(t testing.TB, k *Kubernetes, trace *explain.Trace) *dns.Msg {
	t.Helper()
	name, qtype, _ := strings.Cut(q.question, " ")
	r := test.Case{Qname: name + ".cluster.local.", Qtype: dns.StringToType[qtype]}.Msg()
	if q.option != nil {
		r.SetEdns0(1232, false)
		r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: q.option}}
	}
	if q.list != nil {
		r = withList(t, r, q.list...)
	}
	from := q.from
	if from == "" {
		from = "192.0.2.1"
	}
	w := dnstest.NewRecorder(&test.ResponseWriter{RemoteIP: from})
	if _, err := k.ServeDNS(explain.With(context.Background(), trace), w, r); err != nil {
		t.Fatalf("%s: %v", q.question, err)
	}
	return w.Msg
}

func textsOfSteps(trace *explain.Trace) (texts []string) {
	for _, s := range trace.Steps() {
		texts = append(texts, s.Text)
	}
	return texts
}

// wantSteps asserts that steps are among others in their order.
func wantSteps(t testing.TB, got []string, want ...string) {
	t.Helper()
	rest := got
	for _, w := range want {
		at := slices.Index(rest, w)
		if at < 0 {
			t.Fatalf("no step %q in its place in\n%s", w, strings.Join(got, "\n"))
		}
		rest = rest[at+1:]
	}
}

// wantNone asserts that no step has a text.
func wantNone(t testing.TB, got []string, text string) {
	t.Helper()
	if at := slices.IndexFunc(got, func(s string) bool { return strings.Contains(s, text) }); at >= 0 {
		t.Errorf("step %q", got[at])
	}
}

// TestExplain_Policies asserts the reasons of each policy, and that the addresses of the steps are those of the reply.
func TestExplain_Policies(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	const (
		on1, on3 = `endpoint 10.1.1.%[1]d on node "n1" in zone "east": `, `endpoint 10.1.3.%[1]d on node "n3" in zone "west": `
		fallback = "selected: fallback: the caller's node is unknown, all are selected"
	)
	for _, c := range []struct {
		name, service string
		octet         int
		from          string // n1 and n2 are in the zone east, n2 and n3 in the rack r3
		want          []string
	}{
		{"without policy", "plain", 0, "n2", []string{"policy: all endpoints", "2 of 2 ready endpoints selected (A)", on1 + "selected", on3 + "selected"}},
		{"hints", "auto", 7, "n2", []string{"policy: hints of the EndpointSlices (service.kubernetes.io/topology-mode)", "1 of 2 ready endpoints selected (A)",
			on1 + "selected: hint east, the caller is in east", on3 + "left out: hint west, the caller is in east"}},
		{"hints, unknown caller", "auto", 7, "", []string{"2 of 2 ready endpoints selected (A)", on1 + fallback, on3 + fallback}},
		{"selected first", "close", 5, "n3", []string{"policy: trafficDistribution: PreferSameZone", on3 + "selected: in the caller's zone",
			on1 + "left out: zone east, the caller is in west"}},
		{"same zone, unknown caller", "close", 5, "", []string{on1 + fallback, on3 + fallback}},
		{"same node", "samenode", 6, "n1", []string{"policy: trafficDistribution: PreferSameNode", on1 + "selected: on the caller's node",
			on3 + "left out: node n3 is not the caller's, n1"}},
		{"local", "local", 4, "n2", []string{"policy: endpoints on the caller's node (internalTrafficPolicy: Local)", "0 of 2 ready endpoints selected (A)",
			on1 + "left out: node n1 is not the caller's, n2", on3 + "left out: node n3 is not the caller's, n2",
			"NODATA: local.shop.svc.cluster.local. has no records of type A for the caller"}},
		{"keys", "rack", 3, "n2", []string{"policy: topology keys example.com/rack (annotation nearside.dev/topology-keys)",
			on3 + "selected: label example.com/rack is r3, as the caller's", on1 + "left out: label example.com/rack is r1, the caller's is r3"}},
		{"keys with *", "wide", 2, "", []string{
			on1 + "selected: fallback: no endpoint matches a key before *, all are selected", on3 + "selected: fallback: no endpoint matches a key before *, all are selected"}},
		{"by an alias", "alias", 4, "n1", []string{"Service shop/alias is an alias of local.shop.svc.cluster.local.", "local.shop.svc.cluster.local. is of endpoints",
			on1 + "selected: on the caller's node"}},
		{"the name of an endpoint", "db-3.host", 1, "n1", []string{"policy: all endpoints of this name", "1 of 1 ready endpoints selected (A)", on3 + "selected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := explainedQuery{question: c.service + ".shop.svc A"}
			if c.from != "" {
				q.from = "10.240." + c.from[1:] + ".9"
			}
			trace := explain.New(explain.Query{})
			reply := q.send(t, k, trace)
			steps := textsOfSteps(trace)
			for i, w := range c.want {
				if strings.Contains(w, "%[1]d") {
					c.want[i] = fmt.Sprintf(w, c.octet)
				}
			}
			wantSteps(t, steps, c.want...)
			selected := 0
			for _, s := range steps {
				if strings.HasPrefix(s, "endpoint ") && strings.Contains(s, ": selected") {
					selected++
				}
			}
			if addresses := strings.Count(seenBy(reply), "n"); addresses != selected {
				t.Errorf("%d selected endpoints, and %d addresses in the reply", selected, addresses)
			}
		})
	}
}

// TestExplain_Many asserts that each family has its own count and its own limit of steps.
func TestExplain_Many(t *testing.T) {
	db := headlessWith("db")
	four, six := slice(db, "4"), slice(db, "6")
	six.AddressType = discoveryv1.AddressTypeIPv6
	for i := range 30 {
		four.Endpoints = append(four.Endpoints, endpoint(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String(), onNode("n1")))
	}
	four.Endpoints = append(four.Endpoints, endpoint("10.2.0.1", onNode("n2")))
	six.Endpoints = append(six.Endpoints, endpoint("2001:db8::1", onNode("n2")))
	k := answering(t, "kubernetes cluster.local {\ntopology\n}", namespace("shop"), local(db), four, six)
	putNode(indexOf(k), "n2", "east", "r1", "10.240.2.0/24")
	putNode(indexOf(k), "n1", "east", "r1", "10.240.1.0/24")
	trace := explain.New(explain.Query{})
	explainedQuery{question: "_sql._tcp.db.shop.svc SRV", from: "10.240.2.1"}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "1 of 31 ready endpoints selected (A)", `endpoint 10.2.0.1 on node "n2": selected: on the caller's node`,
		`endpoint 10.1.0.18 on node "n1": left out: node n1 is not the caller's, n2`, "11 more: 0 selected, 11 left out",
		"1 of 1 ready endpoints selected (AAAA)", `endpoint 2001:db8::1 on node "n2": selected: on the caller's node`)
	trace = explain.New(explain.Query{})
	explainedQuery{question: "db.shop.svc A", from: "10.240.1.1"}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "30 of 31 ready endpoints selected (A)", "11 more: 10 selected, 1 left out")
	wantNone(t, textsOfSteps(trace), "AAAA")
}

func headlessWith(name string) *corev1.Service {
	return service("shop", name, headless, tcp("sql", 5432))
}

func TestExplain_BeforeSync(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	k.status = func() []source.Status {
		return []source.Status{{Resource: source.Services}, {Resource: source.Namespaces, Synced: true}, {Resource: source.EndpointSlices, Denied: true}}
	}
	for question, want := range map[string][]string{
		"none.shop.svc A":      {"none.shop.svc.cluster.local. is not in the records that have been read", "SERVFAIL: the answer needs records that are not read yet"},
		"plain.shop.svc A":     {"plain.shop.svc.cluster.local. is of endpoints", "SERVFAIL: the answer needs records that are not read yet"},
		"dns-version TXT":      {"dns-version.cluster.local. is that of the version of the specification"},
		"clusterip.shop.svc A": {"Service shop/clusterip has 10.96.0.1", "SERVFAIL: the answer needs records that are not read yet"},
	} {
		t.Run(question, func(t *testing.T) {
			trace := explain.New(explain.Query{})
			reply := explainedQuery{question: question}.send(t, k, trace)
			steps := textsOfSteps(trace)
			wantSteps(t, steps, append([]string{"records are not read yet: services, endpointslices (the API server refuses requests with 401 or 403)"}, want...)...)
			wantNone(t, steps, "does not exist")
			if fails := strings.HasPrefix(want[len(want)-1], "SERVFAIL"); fails != (reply.Rcode == dns.RcodeServerFailure) {
				t.Errorf("the reply is %s", dns.RcodeToString[reply.Rcode])
			}
		})
	}
}

// TestExplain_BeforeNodes has Nodes that are not synced, so that an empty selection is no answer.
func TestExplain_BeforeNodes(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	indexOf(k).ReplaceNodes(nil)
	k.status = func() []source.Status { return []source.Status{{Resource: source.Nodes}} }
	const failed = "SERVFAIL: no endpoint is selected for the caller, which may change when Nodes are read"
	trace := explain.New(explain.Query{})
	reply := explainedQuery{question: "local.shop.svc A"}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "caller 192.0.2.1 unknown: no pod, endpoint or Node has the address; Nodes are not read yet", failed)
	if reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("the reply is %s", dns.RcodeToString[reply.Rcode])
	}
	trace = explain.New(explain.Query{})
	explainedQuery{question: "local.shop.svc A", list: []string{"shop.svc.cluster.local.", "svc.cluster.local."}}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "search list of the query: not used, since no endpoint of a candidate is selected for the caller, which may change when Nodes are read", failed)
}

func TestExplain_Fallthrough(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\nfallthrough\n}")
	k.Next = plugin.HandlerFunc(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeRefused, nil })
	trace := explain.New(explain.Query{})
	explainedQuery{question: "none.shop.svc A"}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "none.shop.svc.cluster.local. does not exist: there is no Service shop/none", "option fallthrough: the next plugin gets the query, handlerfunc")
	k.Zones = []string{"example.org."}
	trace = explain.New(explain.Query{})
	explainedQuery{question: "none.shop.svc A"}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "the name is in no zone of example.org.: the next plugin gets the query")
}

func TestExplain_SearchList(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	lists := []string{"other.svc.cluster.local.", "shop.svc.cluster.local."}
	ask := func(t *testing.T, question string, list ...string) []string {
		trace := explain.New(explain.Query{})
		explainedQuery{question: question, from: "10.240.1.9", list: list}.send(t, k, trace)
		return textsOfSteps(trace)
	}
	t.Run("a candidate", func(t *testing.T) {
		wantSteps(t, ask(t, "local.other.svc A", lists...), `caller 10.240.1.9: node "n1", zone "east", known by the pod CIDR of the node`,
			"local.other.svc.cluster.local. does not exist: there is no namespace other", "local.shop.svc.cluster.local. is of endpoints",
			`endpoint 10.1.3.4 on node "n3" in zone "west": left out: node n3 is not the caller's, n1`,
			"search list of the query: answered with the records of candidate local.shop.svc.cluster.local.")
	})
	t.Run("no candidate", func(t *testing.T) {
		wantSteps(t, ask(t, "none.other.svc A", lists...), "none.shop.svc.cluster.local. does not exist: there is no Service shop/none",
			"search list of the query: no candidate has records of the type")
	})
	t.Run("the other family", func(t *testing.T) {
		steps := ask(t, "plain.other.svc AAAA", lists...)
		wantSteps(t, steps, "search list of the query: NODATA, candidate plain.shop.svc.cluster.local. has addresses, but no records of the type")
		wantNone(t, steps, "(A)")
	})
	t.Run("another suffix", func(t *testing.T) {
		wantSteps(t, ask(t, "local.shop.svc A", lists...), "search list of the query: not used, since the name does not end with its first suffix", "local.shop.svc.cluster.local. is of endpoints")
	})
	t.Run("another server block", func(t *testing.T) {
		wantSteps(t, ask(t, "local.other.svc A", append(lists, "example.org.")...),
			"search list of the query: not used, since another plugin or server block may answer a candidate, or records of a candidate are not read yet")
	})
	t.Run("shared", func(t *testing.T) {
		k.shared = true
		wantSteps(t, ask(t, "local.other.svc A", lists...), "search list of the query: not used, since another plugin of the server block may answer a candidate")
	})
}

// inspected sets the EndpointSlices that the API server has, of which notReady returns some. Its error is that of the API server.
func inspected(k *Kubernetes, partial bool, err error, slices ...*discoveryv1.EndpointSlice) (requests *int) {
	requests = new(int)
	k.notReady = func(context.Context, string, string, bool) (found source.NotReady, _ error) {
		*requests++
		found.Partial = partial
		for _, s := range slices {
			terminating, others := source.NewStripper(k.source).NotReady(s)
			found.Terminating, found.Others = append(found.Terminating, terminating), append(found.Others, others)
		}
		return found, err
	}
	return requests
}

func terminating(e *discoveryv1.Endpoint) {
	yes := true
	notReady(e)
	e.Conditions.Terminating = &yes
}

func TestExplain_NotReady(t *testing.T) {
	db, web := headlessWith("db"), service("shop", "web", []string{"10.96.0.1"}, tcp("http", 80))
	ends := slice(db, "a", endpoint("10.1.0.1", hostname("db-0"), onNode("n1")), endpoint("10.1.0.2", hostname("db-1"), onNode("n2"), notReady),
		endpoint("10.1.0.3", hostname("db-2"), terminating))
	six := slice(db, "b", endpoint("2001:db8::2", hostname("db-1"), notReady))
	udpOnly := slice(service("shop", "db", headless, udp("syslog", 514)), "c", endpoint("10.1.0.9", notReady))
	objects := []runtime.Object{namespace("shop"), db, ends, six, udpOnly, web, externalName("shop", "alias", "db.shop.svc.cluster.local")}
	const (
		subject  = "endpoints of shop/db that are not ready: "
		late     = `endpoint 10.1.0.2 on node "n2": left out: not ready`
		ending   = "endpoint 10.1.0.3: left out: terminating"
		lateSix  = "endpoint 2001:db8::2: left out: not ready"
		otherOne = "endpoint 10.1.0.9: left out: not ready"
	)
	for _, c := range []struct {
		question string
		want     []string
	}{
		{"db.shop.svc A", []string{late, otherOne, ending}},
		{"db.shop.svc AAAA", []string{lateSix}},
		{"_sql._tcp.db.shop.svc SRV", []string{late, lateSix, ending}},
		{"db-1.db.shop.svc A", []string{late}},
		{"db-2.db.shop.svc A", []string{ending}},
		{"db-0.db.shop.svc A", []string{subject + "none"}},
		{"alias.shop.svc A", []string{late, otherOne, ending}},
		{"web.shop.svc A", nil},
		{"none.shop.svc A", nil},
		{"shop.svc A", nil},
	} {
		t.Run(c.question, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local {\ntopology\n}", objects...)
			requests := inspected(k, false, nil, ends, six, udpOnly)
			trace := explain.New(explain.Query{})
			explainedQuery{question: c.question}.send(t, k, trace)
			steps := textsOfSteps(trace)
			at := slices.Index(steps, subject+"requested after the reply")
			if c.want == nil {
				if at >= 0 || *requests > 0 {
					t.Fatalf("requested:\n%s", strings.Join(steps, "\n"))
				}
				return
			}
			if at < 0 || !slices.Equal(steps[at+1:], c.want) || *requests != 1 {
				t.Fatalf("want 1 request and %q, found %d and\n%s", c.want, *requests, strings.Join(steps, "\n"))
			}
			explainedQuery{question: c.question}.send(t, k, trace)
			if *requests != 1 {
				t.Errorf("%d requests for a query that passes the plugin twice", *requests)
			}
		})
	}
	t.Run("ordinary query", func(t *testing.T) {
		k := answering(t, "kubernetes cluster.local", objects...)
		requests := inspected(k, false, nil)
		if m := askAs(t, k, "192.0.2.1", "db.shop.svc.cluster.local.", dns.TypeA); len(m.Answer) != 1 || *requests != 0 {
			t.Errorf("%d requests", *requests)
		}
	})
	t.Run("many", func(t *testing.T) {
		k := answering(t, "kubernetes cluster.local", objects...)
		many := slice(db, "a")
		for i := range 30 {
			many.Endpoints = append(many.Endpoints, endpoint(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}).String(), notReady))
		}
		inspected(k, true, nil, many)
		trace := explain.New(explain.Query{})
		explainedQuery{question: "db.shop.svc A"}.send(t, k, trace)
		wantSteps(t, textsOfSteps(trace), "endpoint 10.1.0.19: left out: not ready", "10 more that are not ready", subject+"only the first EndpointSlices were read")
	})
	t.Run("refused", func(t *testing.T) {
		k := answering(t, "kubernetes cluster.local", objects...)
		inspected(k, false, errors.New("endpointslices is forbidden"))
		trace := explain.New(explain.Query{})
		explainedQuery{question: "db.shop.svc A"}.send(t, k, trace)
		wantSteps(t, textsOfSteps(trace), subject+"unknown, endpointslices is forbidden")
	})
}

// replyFirst is a writer that reports whether the reply was written.
type replyFirst struct {
	test.ResponseWriter
	written bool
}

func (w *replyFirst) WriteMsg(*dns.Msg) error {
	w.written = true
	return nil
}

// TestExplain_HangingServer asserts that an API server that does not answer delays no reply, and the explanation only for a limited time.
func TestExplain_HangingServer(t *testing.T) {
	db := headlessWith("db")
	k := answering(t, "kubernetes cluster.local", namespace("shop"), db)
	w := &replyFirst{}
	k.notReady = func(ctx context.Context, _, _ string, _ bool) (found source.NotReady, _ error) {
		if !w.written {
			t.Error("requested before the reply")
		}
		<-ctx.Done()
		return found, ctx.Err()
	}
	trace := explain.New(explain.Query{})
	r := test.Case{Qname: "db.shop.svc.cluster.local.", Qtype: dns.TypeA}.Msg()
	if _, err := k.ServeDNS(explain.With(context.Background(), trace), w, r); err != nil {
		t.Fatal(err)
	}
	wantSteps(t, textsOfSteps(trace), "endpoints of shop/db that are not ready: unknown, context deadline exceeded")
}

// TestExplain_Caller asserts that each query for a name of the cluster has one step about its caller.
func TestExplain_Caller(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\npods verified\n}")
	indexOf(k).PutPod(&index.Pod{Namespace: "shop", Name: "a", IPs: []netip.Addr{netip.MustParseAddr("10.250.0.1")}, Node: index.NewSymbol("n2")})
	putNode(indexOf(k), "n7", "west", "r1", "10.0.9.1/32")
	plain := answering(t, "kubernetes cluster.local {\npods verified\n}", namespace("shop"), podIn("shop", "a", corev1.PodRunning, "10.250.0.1"))
	here, there := naming(t, "n1", ""), naming(t, "n9", "north")
	for _, c := range []struct {
		name string
		k    *Kubernetes
		q    explainedQuery
		want string
	}{
		{"option", k, explainedQuery{from: "10.0.0.1", option: here}, `caller 10.0.0.1: node "n1", zone "east", known by the caller option of a node cache`},
		{"option, no Node", k, explainedQuery{from: "10.0.0.1", option: there},
			`caller 10.0.0.1: node "n9", zone "north", known by the caller option of a node cache; there is no Node of this name`},
		{"pod", k, explainedQuery{from: "10.250.0.1"}, `caller 10.250.0.1, pod shop/a: node "n2", zone "east", known by its pod`},
		{"endpoint", k, explainedQuery{from: "10.1.3.4"}, `caller 10.1.3.4: node "n3", zone "west", known by an endpoint with its address`},
		{"range", k, explainedQuery{from: "10.240.3.4"}, `caller 10.240.3.4: node "n3", zone "west", known by the pod CIDR of the node`},
		{"node", k, explainedQuery{from: "10.0.9.1"}, `caller 10.0.9.1: node "n7", zone "west", known as the address of the node`},
		{"unknown", k, explainedQuery{}, "caller 192.0.2.1 unknown: no pod, endpoint or Node has the address"},
		{"untrusted", k, explainedQuery{option: here},
			"caller 192.0.2.1 unknown: no pod, endpoint or Node has the address, and the caller option from an address that is not in trust is ignored"},
		{"malformed", k, explainedQuery{from: "10.0.0.1", option: []byte{7}},
			"caller 10.0.0.1 unknown: no pod, endpoint or Node has the address, and the caller option is malformed"},
		{"the node of the explained query", k, explainedQuery{option: here, node: "n1"}, `caller 192.0.2.1: node "n1", zone "east", known by the caller option of a node cache`},
		{"no topology", plain, explainedQuery{}, "caller 192.0.2.1 unknown: option topology is not set, so that every caller gets the same answer"},
		{"no topology, a pod", plain, explainedQuery{from: "10.250.0.1"}, "caller 10.250.0.1, pod shop/a: every caller gets the same answer, since option topology is not set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, question := range []string{"clusterip.shop.svc A", "none.shop.svc A", "local.shop.svc A", "alias.shop.svc A"} {
				q := c.q
				q.question = question
				trace := explain.New(explain.Query{Node: q.node})
				reply := q.send(t, c.k, trace)
				q.send(t, c.k, trace) // as by a candidate of another plugin
				about := slices.DeleteFunc(textsOfSteps(trace), func(s string) bool { return !strings.HasPrefix(s, "caller ") })
				if !slices.Equal(about, []string{c.want}) {
					t.Errorf("%s: %q, want %q", question, about, c.want)
				}
				if q.node != "" && question == "local.shop.svc A" && seenBy(reply) != q.node {
					t.Errorf("the reply has the endpoints of %q", seenBy(reply))
				}
			}
		})
	}
	trace := explain.New(explain.Query{Node: "n1"})
	explainedQuery{question: "local.other.svc HTTPS", option: here, list: []string{"other.svc.cluster.local.", "shop.svc.cluster.local."}}.send(t, k, trace)
	wantSteps(t, textsOfSteps(trace), "search list of the query: NODATA, candidate local.shop.svc.cluster.local. has addresses, but no records of the type")
	if got := seenBy(askAs(t, k, "192.0.2.1", "local.shop.svc.cluster.local.", dns.TypeA, here)); got != "" {
		t.Errorf("an ordinary query with an untrusted option gets the endpoints of %q", got)
	}
}
