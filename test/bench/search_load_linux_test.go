package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// clusterAnswer answers as cluster DNS and the upstream server together, without expansion.
func clusterAnswer(services map[string]string, r *dns.Msg) (*dns.Msg, error) {
	q := r.Question[0]
	if !strings.HasSuffix(q.Name, ".cluster.local.") {
		query, err := r.Pack()
		if err != nil {
			return nil, err
		}
		read, err := readQuestion(query)
		if err != nil {
			return nil, err
		}
		m := new(dns.Msg)
		return m, m.Unpack(answerTo(nil, query, read))
	}
	address, ok := services[q.Name]
	m := new(dns.Msg).SetReply(r)
	switch {
	case !ok:
		m.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeA:
		rr, err := dns.NewRR(q.Name + " A " + address)
		m.Answer = []dns.RR{rr}
		return m, err
	}
	return m, nil
}

// expandedAnswer answers as a server with *autopath*, for names of the first suffix.
func expandedAnswer(services map[string]string, search []string, r *dns.Msg) (*dns.Msg, error) {
	asked := r.Question[0].Name
	walk := resolver{search: search}
	for _, name := range walk.walk(strings.TrimSuffix(asked, "."+search[0])) {
		tried := r.Copy()
		tried.Question[0].Name = name
		m, err := clusterAnswer(services, tried)
		if err != nil {
			return nil, err
		}
		if m.Rcode == dns.RcodeNameError {
			continue
		}
		m.Question[0].Name = asked
		if name != asked && len(m.Answer) > 0 {
			m.Answer = append([]dns.RR{&dns.CNAME{Hdr: dns.RR_Header{Name: asked, Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: name}}, m.Answer...)
		}
		return m, nil
	}
	return new(dns.Msg).SetRcode(r, dns.RcodeNameError), nil
}

func TestSearchLoad(t *testing.T) {
	services := map[string]string{}
	for n := range searchCluster.Services {
		if s := searchCluster.Service(n); !s.Headless {
			services[serviceName(s)] = s.ClusterIP
		}
	}
	all := testLookups(t, 3, "test", 400)
	var external, short, long int
	for _, l := range all {
		switch {
		case l.external:
			external++
		case strings.Contains(l.name, "."):
			long++
		default:
			short++
		}
	}
	plain := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if m, err := clusterAnswer(services, r); err == nil {
			_ = w.WriteMsg(m) // without it, a look-up fails
		}
	})
	expanding := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		from, err := netip.ParseAddrPort(w.RemoteAddr().String())
		if err != nil {
			return
		}
		search := podOf(int(from.Addr().As4()[3]) - 1).searchList()
		if m, err := expandedAnswer(services, search, r); err == nil {
			_ = w.WriteMsg(m) // without it, a look-up fails
		}
	})
	for _, c := range []struct {
		name              string
		server            netip.AddrPort
		external, cluster int // queries
	}{
		{"the full walk", plain, 10 * external, 2*short + 4*long},
		{"expanded", expanding, 2 * external, 2*short + 2*long},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := searchLoad{server: c.server, timeout: time.Minute}
			done, err := l.run(t.Context(), all)
			if err != nil {
				t.Fatal(err)
			}
			if err := done.judge(); err != nil {
				t.Error(err)
			}
			if done.External.Queries != c.external || done.Cluster.Queries != c.cluster {
				t.Errorf("%d and %d queries, want %d and %d", done.External.Queries, done.Cluster.Queries, c.external, c.cluster)
			}
			if len(done.External.Latencies) != external || len(done.Cluster.Latencies) != short+long || done.Failed != 0 || done.Again != 0 {
				t.Errorf("%d and %d latencies, %d failed, %d again", len(done.External.Latencies), len(done.Cluster.Latencies), done.Failed, done.Again)
			}
			if !slices.IsSorted(done.External.Latencies) || !slices.IsSorted(done.Cluster.Latencies) || done.Rate <= 0 {
				t.Errorf("latencies not in order, or no rate: %+v", done)
			}
		})
	}
}

func TestSearchLoadFails(t *testing.T) {
	all := testLookups(t, 3, "test", 20)
	for _, c := range []struct {
		name   string
		answer func(r *dns.Msg) *dns.Msg
		want   string // in the error
		failed int
	}{
		{"wrong addresses", func(r *dns.Msg) *dns.Msg {
			m := new(dns.Msg).SetReply(r)
			m.Answer = []dns.RR{&dns.CNAME{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET}, Target: "x."}}
			if r.Question[0].Qtype == dns.TypeA {
				m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, 2, 1}})
			}
			return m
		}, "a wrong answer: addresses [192.0.2.1], want [", 0},
		{"no such names", func(r *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(r, dns.RcodeNameError) }, "a wrong answer: addresses [], want [", 0},
		{"failures", func(r *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(r, dns.RcodeServerFailure) }, "", len(all)},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
				_ = w.WriteMsg(c.answer(r)) // the result has the failures
			})
			l := searchLoad{server: server, timeout: time.Minute}
			done, err := l.run(t.Context(), all)
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, errWrong) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if done.Failed != c.failed {
				t.Errorf("%d failed, want %d", done.Failed, c.failed)
			}
			if c.failed > 0 && !strings.Contains(done.Failure, "SERVFAIL") {
				t.Errorf("the failure is %q", done.Failure)
			}
		})
	}
}

// TestSearchLoadPaces has a first look-up without an answer, and the others start at their time.
func TestSearchLoadPaces(t *testing.T) {
	server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)) // the result has the failures
	})
	const n, interval = 20, 5 * time.Millisecond
	l := searchLoad{server: server, timeout: time.Minute, interval: interval}
	began := time.Now()
	done, err := l.run(t.Context(), testLookups(t, 1, "test", n))
	if took := time.Since(began); err != nil || took < (n-1)*interval {
		t.Errorf("%s, error %v; want at least %s", took, err, (n-1)*interval)
	}
	if fastest := float64(n) / ((n - 1) * interval).Seconds(); done.Rate > fastest {
		t.Errorf("a rate of %.0f/s, want at most %.0f/s", done.Rate, fastest)
	}
}

func TestSearchJudge(t *testing.T) {
	some := func(n int) kindDone { return kindDone{Latencies: make([]time.Duration, n)} }
	for _, c := range []struct {
		name string
		done searchDone
		lost bool
	}{
		{"all answered", searchDone{External: some(700), Cluster: some(300)}, false},
		{"one in a thousand failed", searchDone{External: some(700), Cluster: some(300), Failed: 1}, false},
		{"more failed", searchDone{External: some(700), Cluster: some(300), Failed: 2}, true},
		{"all failed", searchDone{Failed: 10}, true},
		{"external names alone", searchDone{External: some(10)}, true},
		{"cluster names alone", searchDone{Cluster: some(10)}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.done.judge(); errors.Is(err, dnsperf.ErrLost) != c.lost {
				t.Errorf("error %v, lost: %v", err, c.lost)
			}
		})
	}
}

func TestServePods(t *testing.T) {
	server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)) // the report has the error
	})
	job, err := json.Marshal(searchJob{Port: server.Port(), Tag: "test", Lookups: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, job, want string }{ // want is in the error, or at the report's end
		{"a job", string(job), `"Failed":3,`},
		{"no job", "fast", "invalid character"},
		{"a tag that is no label", `{"Tag":"..","Lookups":100}`, "bad rdata"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			err := servePods(t.Context(), c.job, &out)
			if err != nil {
				fmt.Fprint(&out, err)
			}
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("%q, want %q in it", &out, c.want)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := servePods(ctx, string(job), new(strings.Builder)); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
	})
}

func TestMain(m *testing.M) { kubeapi.Main(m) }

// TestSearchAPI: the API server has the pods on their node, and the large cluster.
func TestSearchAPI(t *testing.T) {
	api := kubeapi.New(t)
	if err := loadCluster(api, searchCluster, true); err != nil {
		t.Fatal(err)
	}
	get := func(path string, list any) error {
		response, err := http.Get(api.URL() + path)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		return json.NewDecoder(response.Body).Decode(list)
	}
	const path = "/api/v1/pods?fieldSelector=spec.nodeName%3D"
	var pods, others corev1.PodList
	if err := get(path+searchNode(), &pods); err != nil || len(pods.Items) != searchPods {
		t.Fatalf("%d pods on the node, error %v; want %d", len(pods.Items), err, searchPods)
	}
	namespaces := map[string]string{}
	for _, p := range pods.Items {
		namespaces[p.Status.PodIP] = p.Namespace
	}
	for n := range searchPods {
		if p := podOf(n); namespaces[p.address.String()] != p.namespace {
			t.Errorf("%s is in %q, want %q", p.address, namespaces[p.address.String()], p.namespace)
		}
	}
	var services corev1.ServiceList
	if err := get("/api/v1/services", &services); err != nil || len(services.Items) != searchCluster.Services {
		t.Errorf("%d Services, error %v; want %d", len(services.Items), err, searchCluster.Services)
	}
	if err := get(path+"node-0001", &others); err != nil || len(others.Items) != 0 {
		t.Errorf("%d pods on another node, error %v", len(others.Items), err)
	}
}
