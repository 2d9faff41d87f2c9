//go:build linux

package monitoring

import (
	"bytes"
	"fmt"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/monitoring/picture"
	"github.com/nearside-dns/nearside/test/netns"
)

// picturesVariable is the environment variable that makes the test draw the pictures of the documents again; its value
// is the duration of the traffic, such as 10m.
const picturesVariable = "NEARSIDE_PICTURES"

// TestPrograms runs both programs with traffic and failures, and checks that they export every name in the dashboards
// and the rules, and that every panel has data.
func TestPrograms(t *testing.T) {
	interval, pause, perSecond := time.Second, time.Duration(0), 25
	if text := os.Getenv(picturesVariable); text != "" {
		lasts, err := time.ParseDuration(text)
		kit.Must(t, err)
		interval, pause, perSecond = max(interval, lasts/120), lasts/5, 200
	}
	netns.Require(t, "ip", "nft", "prometheus")
	b := newBed(t)
	p := b.startPrometheus(t, interval)
	start := time.Now()
	l := b.startLoad(t, perSecond)
	b.traffic(t)
	b.trouble(t, pause)
	time.Sleep(pause + 2*interval) // the last event has been scraped twice
	end := time.Now()
	l.end()
	for program, path := range dashboards {
		t.Run("panels of "+program, func(t *testing.T) { b.draw(t, p, program, path, start, end) })
	}
	all := map[string]exported{}
	for _, program := range []string{nodecache, clusterdns} {
		page, err := b.page(program)
		kit.Must(t, err)
		all[program] = exported{}
		all[program].read(page)
	}
	documented := documentedValues(t)
	for program, path := range dashboards {
		t.Run("dashboard of "+program, func(t *testing.T) {
			d, err := picture.Read(path)
			kit.Must(t, err)
			var expressions []string
			for _, p := range d.Panels {
				for _, target := range p.Targets {
					expressions = append(expressions, picture.Fill(target.Expr, filled))
				}
			}
			expressions = append(expressions, variables(t, d)...)
			if len(expressions) < 40 {
				t.Fatalf("only %d expressions were found", len(expressions))
			}
			for i, n := range parse(t, expressions...) {
				if n.Error != "" {
					t.Errorf("%s: %s", expressions[i], n.Error)
				}
				for _, s := range n.Selectors {
					for _, lack := range all[program].lacks(s, documented) {
						t.Errorf("%s: %s does not export %s", expressions[i], program, lack)
					}
				}
			}
		})
	}
	t.Run("documents", func(t *testing.T) {
		page := kit.Read(t, configuration)
		for _, program := range []string{nodecache, clusterdns} {
			for _, name := range all[program].undocumented(page) {
				t.Errorf("%s exports %s, which is not in %s", program, name, configuration)
			}
		}
	})
	t.Run("rules", func(t *testing.T) {
		for _, r := range alerts(t) {
			// Prometheus reports here what it can't match, such as several series on both sides.
			if _, err := p.query(r.Expr, start, end, false); err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			names := parse(t, r.Expr)[0]
			for _, s := range names.Selectors {
				for _, program := range programsOf(s) {
					for _, lack := range all[program].lacks(s, documented) {
						t.Errorf("%s: %s does not export %s", r.Alert, program, lack)
					}
				}
			}
			for _, l := range templateLabels(r) {
				selector := names.Selectors[0] // those of the result without an aggregation
				inMetric := names.Result == nil && (isTarget(l) || all[programsOf(selector)[0]][selector.Metric][l] != nil)
				if !inMetric && !slices.Contains(names.Result, l) {
					t.Errorf("%s: the text has the label %s, which the expression has not", r.Alert, l)
				}
			}
		}
	})
}

// templateLabels are the labels in the texts of an alert.
func templateLabels(r rule) (all []string) {
	for _, text := range r.Annotations {
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// draw draws a dashboard; all panels must have data. The pictures of the documents are written if the variable is set.
func (b *bed) draw(t *testing.T, p *prometheusServer, program, path string, start, end time.Time) {
	t.Helper()
	d, err := picture.Read(path)
	kit.Must(t, err)
	values := maps.Clone(filled)
	values["job"], values["__rate_interval"] = program, (4 * p.interval).String() // as in Grafana
	svg, empty, err := picture.Draw(d, start, end, func(expression string, instant bool) ([]picture.Series, error) {
		return p.query(picture.Fill(expression, values), start, end, instant)
	})
	kit.Must(t, err)
	if len(empty) > 0 {
		t.Errorf("there is no data in %q", empty)
	}
	if os.Getenv(picturesVariable) == "" {
		return
	}
	netns.Require(t, "rsvg-convert")
	from := kit.File(t, "dashboard.svg", svg)
	var problems bytes.Buffer
	cmd := exec.Command("rsvg-convert", from)
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("rsvg-convert: %v\n%s", err, problems.String())
	}
	drawn, err := png.Decode(bytes.NewReader(out))
	kit.Must(t, err)
	var small bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	kit.Must(t, encoder.Encode(&small, picture.Shrink(drawn)))
	kit.Must(t, os.WriteFile("../../docs/pictures/dashboard-"+program+".png", small.Bytes(), 0o644))
}

// programsOf returns the programs of a selector. Metrics of the node cache alone need no job.
func programsOf(s selector) []string {
	if job := s.Equal["job"]; job != "" {
		return []string{job}
	}
	if s.Matching["job"] == nodecache+"|"+clusterdns {
		return []string{nodecache, clusterdns}
	}
	return []string{nodecache}
}

// The names that pods query.
var (
	clusterNames  = []string{"web.shop.svc.cluster.local.", "web-2.shop.svc.cluster.local.", "db.shop.svc.cluster.local.", "web-1.bank.svc.cluster.local."}
	missingNames  = []string{"none.shop.svc.cluster.local.", "none.invalid."}
	externalNames = []string{"www.example.com.", "api.example.com.", "short.example.com.", "wrong.example.com."}
	searchNames   = []string{"api.example.com.shop.svc.cluster.local.", "web.v1.search.shop.cluster.local.ap.k8s.io."}
)

// traffic sends queries of every kind, over every transport.
func (b *bed) traffic(t *testing.T) {
	t.Helper()
	for _, network := range []string{"udp", "tcp"} {
		for _, server := range []string{local, clusterDNS} {
			for _, name := range append(append(append(clusterNames[:len(clusterNames):len(clusterNames)], externalNames...), searchNames...), missingNames...) {
				for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeA} {
					if _, err := ask(b.Pod[0], network, server, name, qtype, patient); err != nil {
						t.Logf("%s over %s from %s: %v", name, network, server, err)
					}
				}
			}
			if reply, err := ask(b.Pod[1], network, server, "refused.example.com.", dns.TypeA, patient); err != nil || reply.Rcode != dns.RcodeServerFailure {
				t.Fatalf("%v, want SERVFAIL from %s over %s: %v", reply, server, network, err)
			}
		}
	}
	// A change of a Service, whose propagation is measured.
	kit.Succeeds(t, bounded, "a change is synced", func() error {
		if err := b.api.Put(b.databases(4)); err != nil {
			return err
		}
		return b.answered(b.Pod[0], "udp", clusterDNS, "db-3.db.shop.svc.cluster.local.", dns.TypeA)
	})
	b.counted(t, clusterdns, "coredns_kubernetes_dns_programming_duration_seconds_count")
	b.counted(t, nodecache, "nearside_forward_fallbacks_total", "reason", "udp")
	b.counted(t, nodecache, "nearside_kernel_answered_total")
}

// trouble causes failures of a node: resolvers that do not reply, a server that hangs, rules that another program
// removes.
// There is a pause after each.
func (b *bed) trouble(t *testing.T, pause time.Duration) {
	t.Helper()
	time.Sleep(pause)
	b.resolver.down.Store(true)
	for _, server := range []string{local, clusterDNS} {
		reply, err := ask(b.Pod[0], "tcp", server, "unknown.example.com.", dns.TypeA, patient)
		if err != nil || reply.Rcode != dns.RcodeServerFailure {
			t.Fatalf("%v, want SERVFAIL without resolvers: %v", reply, err)
		}
	}
	for _, program := range []string{nodecache, clusterdns} {
		b.counted(t, program, "coredns_proxy_healthcheck_failures_total", "to", resolver+":53")
	}
	b.resolver.down.Store(false)
	time.Sleep(pause)
	b.cache.Freeze(t)
	time.Sleep(2 * time.Second) // longer than a lease
	kit.Succeeds(t, bounded, "cluster DNS answers in place of nodecache", func() error {
		return b.answered(b.Pod[0], "udp", local, "web.shop.svc.cluster.local.", dns.TypeA)
	})
	b.cache.Thaw(t)
	b.counted(t, nodecache, "nearside_nodelocal_leases_lost_total", "address", local)
	time.Sleep(pause)
	for n := 1.0; n <= 2; n++ {
		b.Node.Run(t, "nft", "delete", "table", "inet", "nearside-nodelocaldns")
		kit.Succeeds(t, bounded, "nodecache repairs its rules", func() error {
			samples, err := b.scrape(nodecache)
			if got := samples.Sum("nearside_nodelocal_repairs_total", "what", "rules"); err == nil && got != n {
				err = fmt.Errorf("%g repairs", got)
			}
			return err
		})
		time.Sleep(pause / 4)
	}
}
