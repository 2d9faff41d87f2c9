//go:build linux

package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/dropin"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// slow is the time from which on an answer is late: the resolvers of most C libraries retry, or query
// another server, after 5 s, and pods notice earlier.
const slow = time.Second

// slowUpstream is the same for an answer that a resolver has cached: a lookup of a new name takes several times as long.
const slowUpstream = 250 * time.Millisecond

// result is the outcome of one query.
type result struct {
	rcode int
	first string // the first address in the answer
	took  time.Duration
	err   error
}

// question is the question of a query. The role begins the server's name in the lines: "cluster DNS ", "upstream " or "".
type question struct {
	role, name string
	qtype      uint16
}

// query sends one query and waits for the answer until the timeout.
func (n *node) query(ctx context.Context, network string, server netip.AddrPort, q question) result {
	ctx, cancel := context.WithTimeout(ctx, n.options.timeout)
	defer cancel()
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	client := dns.Client{Net: network, Timeout: n.options.timeout}
	answer, took, err := client.ExchangeContext(ctx, m, server.String())
	if err != nil {
		return result{err: err}
	}
	r := result{rcode: answer.Rcode, took: took}
	for _, rr := range answer.Answer {
		if a, ok := rr.(*dns.A); ok {
			r.first = a.A.String()
			break
		}
	}
	return r
}

// String returns the result in a few words.
func (r result) String() string {
	if r.err != nil {
		return reason(r.err)
	}
	text := dns.RcodeToString[r.rcode]
	if r.first != "" {
		text = r.first
	}
	return fmt.Sprintf("%s in %s", text, milliseconds(r.took))
}

// milliseconds prints a time in the unit that people compare DNS servers in.
func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
}

// reason returns in a few words why there is no answer.
func reason(err error) string {
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	case errors.Is(err, syscall.ENETUNREACH):
		return "network is unreachable"
	case errors.Is(err, syscall.EHOSTUNREACH):
		return "no route to host"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "the address is on no interface"
	}
	return oneLine(err)
}

var networks = []string{"udp", "tcp"}

// probe sends a query to servers over UDP and TCP at the same time. Each server has two lines with the
// results as values; judge sets their verdicts and advice.
func (n *node) probe(ctx context.Context, servers []netip.AddrPort, q question, judge func(server netip.AddrPort, lines []Line, results []result)) []Line {
	return parallel(servers, func(server netip.AddrPort) []Line {
		results, lines := make([]result, len(networks)), make([]Line, len(networks))
		var wait sync.WaitGroup
		for i, network := range networks {
			wait.Go(func() {
				results[i] = n.query(ctx, network, server, q)
				lines[i] = Line{Check: fmt.Sprintf("query %s%s %s", q.role, shown(server), network), Value: results[i].String(), Verdict: OK}
			})
		}
		wait.Wait()
		judge(server, lines, results)
		return lines
	})
}

// shown is a server without the default port.
func shown(server netip.AddrPort) string {
	if server.Port() == dnsPort {
		return server.Addr().String()
	}
	return server.String()
}

// service is a name that every cluster has.
func (n *node) service() string { return "kubernetes.default.svc." + n.options.domain }

// judgeService judges a query for service, without advice against errors.
func (n *node) judgeService(line *Line, r result) {
	switch {
	case r.err != nil:
		line.Verdict = Fail
	case r.rcode == dns.RcodeNameError:
		line.Verdict = Warn
		line.Advice = "there is no " + n.service() + ": name the cluster's domain with -domain"
	case r.rcode != dns.RcodeSuccess:
		line.Verdict = Fail
	case r.took > slow:
		line.Verdict, line.Advice = Warn, "pods wait for it: look at the load of the server and of the node"
	}
}

// probeLocal queries the node-local addresses, as a pod does.
func (n *node) probeLocal(ctx context.Context) []Line {
	s := n.setup()
	var servers []netip.AddrPort
	for _, a := range s.addresses {
		servers = append(servers, netip.AddrPortFrom(a, n.options.port))
	}
	source := n.answerSource(s)
	return n.probe(ctx, servers, question{"", n.service(), dns.TypeA}, func(server netip.AddrPort, lines []Line, results []result) {
		for i, r := range results {
			line := &lines[i]
			line.Check = "query " + server.Addr().String() + " " + networks[i]
			n.judgeService(line, r)
			switch {
			case r.err != nil && s.noIface && s.noRules:
				line.Advice = "pods that are redirected to this nodecache get no answer: read its log, and see its port above"
			case r.err != nil:
				line.Advice = "pods get no answer: see the lines on this address, its lease and its port above"
			case line.Verdict == Fail:
				line.Advice = "see the lines on cluster DNS below, and the log of nodecache"
			}
			if r.err == nil {
				line.Value += source(server.Addr())
			}
		}
	})
}

// answerSource returns a function that names the server which answers on an address now: nodecache with a lease, else
// cluster DNS. The function returns "" if the rules or the leases cannot be read.
func (n *node) answerSource(s setup) func(netip.Addr) string {
	matched, err := n.matched()
	leases, err2 := n.leases(s.iface)
	if matched == nil || err != nil || err2 != nil {
		return func(netip.Addr) string { return "" }
	}
	return func(a netip.Addr) string {
		if _, in := leases[a]; in {
			return " from nodecache"
		}
		return " from cluster DNS, the lease is out"
	}
}

// probeSelf sends nodecache queries like its own self-queries, which the rules let pass without a lease.
func (n *node) probeSelf(ctx context.Context) []Line {
	if n.setup().unmanaged {
		return one("nodecache itself", "sends no queries to itself, as configured", OK, "")
	}
	return parallel(n.setup().addresses, func(a netip.Addr) []Line { return []Line{n.querySelf(ctx, a)} })
}

// querySelf sends a self-query for a name in each zone that the addresses' server block may have, at the same
// time: a query in a wrong zone is forwarded, which may take long.
func (n *node) querySelf(ctx context.Context, a netip.Addr) Line {
	s := n.setup()
	zones := []string{s.zone}
	if s.zone == "" {
		zones = []string{".", n.options.domain, dropin.Zone}
	}
	took, errs := make([]time.Duration, len(zones)), make([]error, len(zones))
	var wait sync.WaitGroup
	for i, zone := range zones {
		wait.Go(func() {
			start := time.Now()
			errs[i] = nodelocal.QuerySelf(ctx, netip.AddrPortFrom(a, n.options.port), s.iface, zone, false, n.options.timeout)
			took[i] = time.Since(start)
		})
	}
	wait.Wait()
	line := Line{Check: "nodecache itself on " + a.String()}
	if i := slices.Index(errs, nil); i >= 0 {
		line.Value, line.Verdict = "answers in "+milliseconds(took[i]), OK
		n.queryArriving(ctx, &line, a, zones[i])
		return line
	}
	if n.translated(a) { // checkLeases has the advice
		line.Value, line.Verdict = "not asked: sockets for this address are connected with cluster DNS", Skip
		return line
	}
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, nodelocal.ErrOtherServer) }) {
		line.Value, line.Verdict = "another DNS server answers", Warn
		line.Advice = "node-local-dns, or a nodecache without the plugin nodelocal: there is no lease; see the process on the port above"
		return line
	}
	line.Value, line.Verdict = reason(errs[0]), Fail
	line.Advice = "nodecache does not answer the node itself, so it gets no lease: read its log, look at its CPU limit"
	return line
}

// queryArriving repeats a self-query that was answered over lo. It sends the query through nodecache's veth
// pair, if there is one, so that it arrives as the queries of pods do.
func (n *node) queryArriving(ctx context.Context, line *Line, a netip.Addr, zone string) {
	iface, port := n.setup().iface, n.options.port
	in := link.PairOf(iface).In
	if !n.hasLink(in) || a.Is6() && a.IsLinkLocalUnicast() || nodelocal.QuerySelf(ctx, netip.AddrPortFrom(a, port), iface, zone, true, n.options.timeout) == nil {
		return
	}
	line.Value, line.Verdict = "answers over lo, and not on interface "+in, Fail
	line.Advice = fmt.Sprintf("a firewall may reject or drop what arrives on other interfaces than lo, and then also queries of pods: see rules of others for the chains, and accept UDP and TCP port %d to %s there; without an answer nodecache gets no lease", port, a)
}

// probeHealth requests the health endpoint as the kubelet does: one address that answers is enough.
func (n *node) probeHealth(ctx context.Context) []Line {
	endpoints := n.setup().health
	if len(endpoints) == 0 {
		return nil
	}
	var first error
	for _, e := range endpoints {
		url := "http://" + e.String() + "/health"
		took, err := n.get(ctx, url, nil)
		if err == nil {
			return one("health", url+" in "+milliseconds(took), OK, "")
		}
		if first == nil {
			first = err
		}
	}
	return one("health", endpoints[0].String()+": "+reason(first), Fail,
		"the kubelet restarts a container whose liveness probe fails: read the log of nodecache, and compare the probe with health in the Corefile")
}

// probeConfiguration reports that nodecache has refused its present configuration, and so uses an earlier one.
func (n *node) probeConfiguration(ctx context.Context) []Line {
	const name = "configuration in use"
	s := n.setup()
	if !s.metrics.IsValid() {
		return nil
	}
	metrics, err := n.scrape(ctx, s.metrics)
	if err != nil {
		return one(name, "metrics of nodecache at "+s.metrics.String()+": "+reason(err), Skip, "read the log of nodecache: it may not run, or another process has the port")
	}
	switch refused, known := metrics.value("nearside_reload_refused", nil); {
	case !known:
		return nil // node-local-dns
	case refused > 0:
		return one(name, "an earlier one: nodecache has refused the present one", Fail,
			`correct it: the log of nodecache has the reason after "the previous configuration stays in use"; a restart would fail`)
	}
	return one(name, "the present one", OK, "")
}

// statusError is the status of a response other than 200.
type statusError int

func (s statusError) Error() string {
	return fmt.Sprintf("answered %d %s", int(s), http.StatusText(int(s)))
}

// get requests a page, passes it to a function if there is one, and returns how long the answer took. An answer other than
// 200 is an error.
func (n *node) get(ctx context.Context, url string, read func(io.Reader) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, n.options.timeout/2) // several addresses may be tried in turn
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	client := http.Client{Transport: &http.Transport{ // no proxy of the environment
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // no secret is sent, and other endpoints have no TLS at all
	}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // nothing is written
	if response.StatusCode != http.StatusOK {
		return 0, statusError(response.StatusCode)
	}
	took := time.Since(start)
	if read != nil {
		err = read(response.Body)
	}
	return took, err
}

// probeCluster queries cluster DNS, as nodecache does for the cluster's names.
func (n *node) probeCluster(ctx context.Context) []Line {
	servers := n.setup().clusterDNS
	if len(servers) == 0 {
		return one("query cluster DNS", "its address is not known here", Skip, "name it with -clusterdns (kubectl -n kube-system get service kube-dns-upstream)")
	}
	return n.probe(ctx, servers, question{"cluster DNS ", n.service(), dns.TypeA}, func(_ netip.AddrPort, lines []Line, results []result) {
		for i, r := range results {
			n.judgeService(&lines[i], r)
			if r.err == nil && lines[i].Verdict == Fail {
				lines[i].Advice = "read the log of the cluster DNS pods"
			}
		}
		judgeTransports(lines, results, "is kube-proxy running, and has the Service endpoints? kubectl -n kube-system get endpointslices -l k8s-app=kube-dns")
	})
}

// probeUpstreams queries the node's resolvers and the Corefile's for the name servers of the root, which
// every resolver knows. Any answer shows that it can be reached.
func (n *node) probeUpstreams(ctx context.Context) []Line {
	s := n.setup()
	found, _ := n.resolvers() // checkResolvers reports the error
	var servers []netip.AddrPort
	for _, r := range found.Servers {
		if a, err := netip.ParseAddr(r); err == nil {
			servers = append(servers, netip.AddrPortFrom(a, dnsPort))
		}
	}
	for _, u := range s.upstreams {
		if !slices.Contains(servers, u) && !slices.Contains(s.clusterDNS, u) {
			servers = append(servers, u)
		}
	}
	roots := question{"upstream ", ".", dns.TypeNS}
	return n.probe(ctx, servers, roots, func(server netip.AddrPort, lines []Line, results []result) {
		for i, r := range results {
			for tries := 2; tries > 0 && r.err == nil && r.took > slowUpstream; tries-- { // it may have had no stored answer
				if again := n.query(ctx, networks[i], server, roots); again.err == nil {
					r, lines[i].Value = again, again.String()
				}
			}
			switch line := &lines[i]; {
			case r.err != nil:
				line.Verdict = Fail
			case r.rcode == dns.RcodeServerFailure:
				line.Verdict, line.Advice = Warn, "it cannot resolve for itself: look at that server"
			case r.took > slowUpstream:
				line.Verdict, line.Advice = Warn, "names outside the cluster are slow: look at that server and the way to it"
			}
		}
		judgeTransports(lines, results, "no way to it: a route, a firewall, or the server is down; remove it from the resolvers if it is gone")
	})
}

// judgeTransports judges a server that answers over one transport only: nodecache prefers TCP and falls
// back to UDP, so either is enough. If the server answers over neither, down is the advice.
func judgeTransports(lines []Line, results []result, down string) {
	udp, tcp := results[0].err, results[1].err
	switch {
	case udp != nil && tcp != nil:
		lines[0].Advice, lines[1].Advice = down, down
	case tcp != nil:
		lines[1].Verdict = Warn
		lines[1].Advice = "nodecache queries it over UDP instead: let TCP port 53 to it through"
	case udp != nil:
		lines[0].Verdict = Warn
		lines[0].Advice = "nodecache queries it over TCP; let UDP port 53 to it through, for pods that query it themselves"
	}
}
