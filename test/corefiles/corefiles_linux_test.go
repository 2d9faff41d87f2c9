package corefiles

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// refused are the Corefiles that start in CoreDNS and not in nearside, with a part of the error.
var refused = map[string]string{
	"external-dns-etcd-helm.corefile": "Unknown directive 'etcd', which CoreDNS has",
	"external-dns-etcd.override":      "Unknown directive 'etcd', which CoreDNS has",
}

// loops are Corefiles that forward to the address of the program itself. Only their start is compared.
var loops = []string{"k3d-custom.server"}

// explained returns the reason for a difference, which the README of kubernetes documents, "" for none.
func explained(q dns.Question, near, stock *dns.Msg) string {
	denied := func(m *dns.Msg) bool {
		return len(m.Answer) == 0 && len(m.Ns) == 1 && m.Ns[0].Header().Rrtype == dns.TypeSOA
	}
	switch reverse := dns.IsSubDomain("arpa.", q.Name); {
	case near == nil || stock == nil:
	case reverse && q.Qtype != dns.TypePTR && near.Authoritative && near.Rcode == dns.RcodeSuccess && denied(near) && !stock.Authoritative:
		return "the reverse name exists: CoreDNS falls through for other types than PTR"
	case near.Rcode == dns.RcodeSuccess && denied(near) && stock.Rcode == dns.RcodeNameError && denied(stock) && near.Ns[0].Header().Name == stock.Ns[0].Header().Name:
		return "RFC 8020: a name with names below it exists"
	case len(near.Extra) > 0 && len(near.Extra) == len(stock.Extra) && near.Extra[len(near.Extra)-1].Header().Rrtype == dns.TypeSRV && strings.HasPrefix(near.Extra[len(near.Extra)-1].Header().Name, "_udp."):
		return "whoami answers with the port of the query"
	}
	return ""
}

// published is a Corefile of testdata.
type published struct {
	name, program, text string
}

// read reads the Corefiles. An override is a part of a server block.
func read(t *testing.T) (all []published) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.*")
	kit.Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		kit.Must(t, err)
		program := regexp.MustCompile(`(?m)^# Program: (\w+)$`).FindSubmatch(text)
		if program == nil || !strings.HasPrefix(string(text), "# Source: ") {
			t.Errorf("%s: no source and program in the first lines", file)
			continue
		}
		p := published{filepath.Base(file), string(program[1]), string(text)}
		if filepath.Ext(file) == ".override" {
			p.text = ".:53 {\n" + p.text + "\n}\n"
		}
		all = append(all, p)
	}
	return all
}

var (
	keyPort   = regexp.MustCompile(`(?m)^[^\s{]\S*?:(\d+)\b`)
	bindLine  = regexp.MustCompile(`(?m)^\s*bind\s+(.*)$`)
	address4  = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`)
	localPart = regexp.MustCompile(`\b169\.254\.\d+\.\d+\b`)
	nameToken = regexp.MustCompile(`\b(?:[a-z0-9_-]+\.)+[a-z]{2,}\b`)
)

// port is the port of the first server block.
func (p *published) port() string {
	if found := keyPort.FindStringSubmatch(p.text); found != nil {
		return found[1]
	}
	return "53"
}

// local are the addresses of the program, besides those that every machine has.
func (p *published) local() (all []string) {
	for _, line := range bindLine.FindAllStringSubmatch(p.text, -1) {
		all = append(all, address4.FindAllString(line[1], -1)...)
	}
	for _, other := range localPart.FindAllString(p.text, -1) { // of health and others
		all = append(all, other)
	}
	all = slices.DeleteFunc(all, func(a string) bool { return a == "0.0.0.0" || strings.HasPrefix(a, "127.") })
	slices.Sort(all)
	return slices.Compact(all)
}

// questions are those about the cluster, about names of the Corefile, and about others.
func (p *published) questions() (all []dns.Question) {
	names := map[string]bool{
		"kubernetes.default.svc.cluster.local.": true, "web.default.svc.cluster.local.": true, "none.default.svc.cluster.local.": true,
		"10-1-2-3.default.pod.cluster.local.": true, "cluster.local.": true, "80.0.96.10.in-addr.arpa.": true, "1.0.0.127.in-addr.arpa.": true,
		"www.example.org.": true, "www.example.org.default.svc.cluster.local.": true, "localhost.": true, "single.": true,
	}
	for _, found := range nameToken.FindAllString(strings.ToLower(p.text), -1) {
		names[found+"."], names["www."+found+"."] = true, true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT} {
			all = append(all, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET})
		}
	}
	return all
}

var noFastPath = regexp.MustCompile(`no fast path for [^:]*: (.*)`)

// slow are the reasons for which server blocks of the published Corefiles have no fast path.
var slow = []string{
	"plugin log has to see every query",
	"neither cache nor kubernetes is configured",
	"plugin template may answer before kubernetes or change its answers, and there is no cache",
}

// server is a program that has started with a Corefile.
type server struct {
	*netns.Process
	namespace *netns.Namespace
	address   string
}

// place is a namespace for one program at a time.
type place struct {
	*netns.Namespace
	folder string
}

func (b *bed) newPlace(t *testing.T, role, device string, number int) place {
	t.Helper()
	n := netns.Add(t, role)
	n.Join(t, b.outside, device, fmt.Sprintf("10.200.%d.%%d/24", number), fmt.Sprintf("fd00:200:%d::%%d/64", number))
	n.Forward(t, b.host+":"+b.port)
	n.Etc(t, "resolv.conf", "nameserver 198.51.100.53\n")
	return place{n, t.TempDir()}
}

// start starts a program with a Corefile, and returns the first line of its error if it ends.
func (b *bed) start(t *testing.T, at place, program string, p *published) (s server, failure string) {
	t.Helper()
	file := filepath.Join(at.folder, p.name)
	kit.Must(t, os.WriteFile(file, []byte(p.text), 0o600))
	s = server{namespace: at.Namespace, address: "127.0.0.1:" + p.port()}
	for _, address := range p.local() {
		at.Run(t, "ip", "address", "replace", address+"/32", "dev", "lo")
		s.address = address + ":" + p.port()
	}
	const script = `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && ln -s "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"`
	s.Process = at.StartWith(t, []string{"KUBERNETES_SERVICE_HOST=" + b.host, "KUBERNETES_SERVICE_PORT=" + b.port, "POD_IP=127.0.0.1"},
		"unshare", "-m", "sh", "-c", script, b.account, program, "-conf", file)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		select {
		case <-s.Ended():
			for line := range strings.Lines(s.Output()) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "[") && !strings.HasPrefix(line, "maxprocs") {
					failure = line
				}
			}
			return s, failure
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := s.ask(dns.Question{Name: "kubernetes.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}); err == nil {
			return s, ""
		}
	}
	return s, "no answer within 20 s"
}

// ask sends a query.
func (s *server) ask(q dns.Question) (reply *dns.Msg, err error) {
	m := new(dns.Msg)
	m.Id, m.RecursionDesired, m.Question = dns.Id(), true, []dns.Question{q}
	return s.namespace.Exchange("udp", s.address, m, 3*time.Second)
}

// summary is what has to be equal: everything but the ID, TTLs, the order of records and the serial.
func summary(m *dns.Msg, err error) string {
	if err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("%s aa=%t ra=%t\n", dns.RcodeToString[m.Rcode], m.Authoritative, m.RecursionAvailable)
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		var lines []string
		for _, rr := range section {
			rr.Header().Ttl = 0
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = 0
			}
			lines = append(lines, fmt.Sprintf("%d %s\n", i, rr))
		}
		slices.Sort(lines)
		text += strings.Join(lines, "")
	}
	return text
}

// TestPublished starts each Corefile in the program of nearside and in CoreDNS, and compares the answers.
func TestPublished(t *testing.T) {
	b := newBed(t)
	ours, theirs := b.newPlace(t, "nearside", "near", 1), b.newPlace(t, "coredns", "stock", 2)
	coredns := controlplane.RequireBinary(t, "coredns")
	for _, p := range read(t) {
		t.Run(p.name, func(t *testing.T) {
			near, failure := b.start(t, ours, daemon.ProgramWithoutRace(t, p.program), &p)
			stock, other := b.start(t, theirs, coredns, &p)
			defer near.Kill(t)
			defer stock.Kill(t)
			switch want, ok := refused[p.name]; {
			case ok && !strings.Contains(failure, want):
				t.Errorf("nearside: %q, want %q", failure, want)
			case failure != "" && other == "" && !ok:
				t.Errorf("nearside: %q; CoreDNS starts", failure)
			}
			if failure != "" || other != "" || slices.Contains(loops, p.name) {
				t.Logf("nearside: %q; CoreDNS: %q", failure, other)
				return
			}
			for _, reason := range noFastPath.FindAllStringSubmatch(near.Output(), -1) {
				if !slices.Contains(slow, reason[1]) {
					t.Errorf("%s", reason[0])
				}
			}
			for _, q := range p.questions() {
				var ours, theirs *dns.Msg
				var got, want string
				var asked sync.WaitGroup // many wait for an upstream that is not there
				asked.Go(func() { reply, err := near.ask(q); ours, got = reply, summary(reply, err) })
				asked.Go(func() { reply, err := stock.ask(q); theirs, want = reply, summary(reply, err) })
				if asked.Wait(); got != want && explained(q, ours, theirs) == "" {
					t.Errorf("%s\nnearside: %s\nCoreDNS: %s", q.String(), got, want)
				}
			}
		})
	}
}
