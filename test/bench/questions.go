package main

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/bench/generated"
)

// kind is one kind of question.
type kind struct {
	name string
	// edns is set if questions have an OPT record, for answers of up to 4096 bytes.
	edns bool
	// option is the data of the caller option, "" for none.
	option []byte
	// tcp is set if dnsperf uses TCP, as nodecache does.
	tcp bool
	// question returns the n-th question, and the expected response code and number of records.
	question func(g generated.Cluster, n int) (name string, qtype uint16, rcode, records int)
}

// The kinds that a budget names.
const (
	kindClusterIP   = "ClusterIP A"
	kindHeadless    = "headless A, 10 endpoints"
	kindHeadlessSRV = "headless SRV, 10 endpoints"
	kindNXDOMAIN    = "NXDOMAIN of a search list"
	kindHit         = "A"
	kindHitEDNS     = "A with EDNS"
)

// clusterKinds are the queries for the cluster DNS servers.
var clusterKinds = []kind{
	{kindClusterIP, true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return serviceName(clusterIP(g, n)), dns.TypeA, dns.RcodeSuccess, 1
	}},
	{kindHeadless, true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return serviceName(headless(g, n)), dns.TypeA, dns.RcodeSuccess, 10
	}},
	{kindNXDOMAIN, true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return fmt.Sprintf("www%d.example.com.%s.svc.cluster.local.", n%97, g.Namespace(n%g.Namespaces)), dns.TypeA, dns.RcodeNameError, 0
	}},
	{"ClusterIP SRV", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return "_http._tcp." + serviceName(clusterIP(g, n)), dns.TypeSRV, dns.RcodeSuccess, 1
	}},
	{kindHeadlessSRV, true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return "_http._tcp." + serviceName(headless(g, n)), dns.TypeSRV, dns.RcodeSuccess, 10
	}},
	{"ClusterIP PTR", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return reverse(clusterIP(g, n).ClusterIP), dns.TypePTR, dns.RcodeSuccess, 1
	}},
	{"endpoint PTR", true, nil, false, func(g generated.Cluster, n int) (string, uint16, int, int) {
		return reverse(g.PodIP(n % g.Endpoints)), dns.TypePTR, dns.RcodeSuccess, 1
	}},
}

// hitKinds are the queries for the caches: few enough names that the caches have them all. The resolvers of glibc and
// musl send no EDNS, that of Go does.
var hitKinds = []kind{{kindHit, false, nil, false, hit}, {kindHitEDNS, true, nil, false, hit}}

func hit(g generated.Cluster, n int) (string, uint16, int, int) {
	return serviceName(clusterIP(g, n)), dns.TypeA, dns.RcodeSuccess, 1
}

// Numbers of questions of a kind. They are drawn at random from the whole cluster; those for the caches are the first of
// it, each once.
const (
	clusterQuestions = 4096
	hitQuestions     = 1000
)

func serviceName(s generated.Service) string {
	return s.Name + "." + s.Namespace + ".svc.cluster.local."
}

func clusterIP(g generated.Cluster, n int) generated.Service {
	for ; ; n++ {
		if s := g.Service(n % g.Services); !s.Headless {
			return s
		}
	}
}

func headless(g generated.Cluster, n int) generated.Service {
	for ; ; n++ {
		if s := g.Service(n % g.Services); s.Headless && s.Endpoints == 10 {
			return s
		}
	}
}

func reverse(address string) string {
	name, err := dns.ReverseAddr(address)
	if err != nil {
		panic(err) // the generated addresses are valid
	}
	return name
}

// packet is a packed question with the expected answer.
type packet struct {
	bytes          []byte
	rcode, records int
	address        net.IP // of the only record, if known
}

// load is all questions of a kind.
type load struct {
	kind
	what    string    // its name in the results
	cached  bool      // the answers have a TTL that counts down
	rate    int       // queries per second, sent by dnsperf whether answered or not; 0 for those of a busy server
	pipes   pipelines // of a load over TCP by our own client; none if dnsperf sends it
	rcode   string    // of every answer, in dnsperf's notation
	packets []packet
	file    string // for dnsperf
}

// dnsperf returns the load for dnsperf.
func (l *load) dnsperf() dnsperf.Load {
	d := dnsperf.Load{File: l.file, Questions: len(l.packets), RCode: l.rcode, Rate: l.rate, EDNS: l.edns, TCP: l.tcp}
	if l.option != nil {
		d.Option = optionArgument(l.option)
	}
	return d
}

// drawn makes questions that are spread over the cluster, the same ones in each run.
func drawn(g generated.Cluster, k kind, folder string) (*load, error) {
	r := rand.New(rand.NewPCG(1, 2))
	l := &load{kind: k, what: k.name}
	var file strings.Builder
	for range clusterQuestions {
		if err := l.add(g, r.IntN(1<<30), &file); err != nil {
			return nil, err
		}
	}
	return l, l.write(folder, file.String())
}

// firstOnes makes questions for the first names of the cluster.
func firstOnes(g generated.Cluster, k kind, folder string) (*load, error) {
	l := &load{kind: k, what: k.name, cached: true}
	var file strings.Builder
	for n := 0; len(l.packets) < min(hitQuestions, g.Services/2); n++ {
		if g.Service(n % g.Services).Headless {
			continue
		}
		if err := l.add(g, n, &file); err != nil {
			return nil, err
		}
	}
	return l, l.write(folder, file.String())
}

// add makes the n-th question. Its packet equals dnsperf's for the line in the file, so that it is one entry for a cache
// with whole packets as keys.
func (l *load) add(g generated.Cluster, n int, file *strings.Builder) error {
	name, qtype, rcode, records := l.question(g, n)
	m := new(dns.Msg).SetQuestion(name, qtype)
	if l.edns {
		m.SetEdns0(4096, false)
	}
	if l.option != nil {
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: optionCode, Data: l.option})
	}
	b, err := m.Pack()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.packets = append(l.packets, packet{bytes: b, rcode: rcode, records: records})
	l.rcode = dns.RcodeToString[rcode]
	fmt.Fprintf(file, "%s %s\n", name, dns.TypeToString[qtype])
	return nil
}

func (l *load) write(folder, text string) error {
	l.file = filepath.Join(folder, fileName(l.what)+".questions")
	return os.WriteFile(l.file, []byte(text), 0o600)
}
