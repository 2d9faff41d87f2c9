//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/cmd/internal/nodelocaldns"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// slow is the time from which on an answer is late: the resolvers of most C libraries ask again, or
// another server, after 5 s, and pods notice earlier.
const slow = time.Second

// result is what came of one query.
type result struct {
	rcode int
	first string // the first address in the answer
	took  time.Duration
	err   error
}

// ask sends one query and waits for the answer, at most for the timeout.
func (n *node) ask(ctx context.Context, network string, server netip.AddrPort, name string, qtype uint16) result {
	answer, took, err := n.exchange(ctx, network, server, nil, name, qtype)
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

// control prepares a socket, as in net.Dialer.
type control func(network, address string, c syscall.RawConn) error

// exchange sends one query, from a socket that is prepared if need be.
func (n *node) exchange(ctx context.Context, network string, server netip.AddrPort, prepare control, name string, qtype uint16) (*dns.Msg, time.Duration, error) {
	return n.exchangeFrom(ctx, nil, network, server, prepare, name, qtype)
}

// exchangeFrom is exchange from a local address; nil is the kernel's choice.
func (n *node) exchangeFrom(ctx context.Context, from net.Addr, network string, server netip.AddrPort, prepare control, name string, qtype uint16) (*dns.Msg, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, n.options.timeout)
	defer cancel()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	c := dns.Client{Net: network, Timeout: n.options.timeout, Dialer: &net.Dialer{LocalAddr: from, Timeout: n.options.timeout, Control: prepare}}
	return c.ExchangeContext(ctx, m, server.String())
}

// String says it in a few words.
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

// reason says in a few words why no answer came.
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
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}

// both asks a server by UDP and by TCP, each line by itself judged as the answer alone tells.
func (n *node) both(ctx context.Context, server netip.AddrPort, name string, qtype uint16) (udp, tcp result) {
	var wait sync.WaitGroup
	wait.Go(func() { udp = n.ask(ctx, "udp", server, name, qtype) })
	wait.Go(func() { tcp = n.ask(ctx, "tcp", server, name, qtype) })
	wait.Wait()
	return udp, tcp
}

// askAll asks servers by UDP and TCP at the same time, and returns the lines that judge makes of it,
// in the servers' order.
func (n *node) askAll(ctx context.Context, servers []netip.AddrPort, name string, qtype uint16, judge func(netip.AddrPort, result, result) []Line) []Line {
	lines := make([][]Line, len(servers))
	var wait sync.WaitGroup
	for i, server := range servers {
		wait.Go(func() {
			udp, tcp := n.both(ctx, server, name, qtype)
			lines[i] = judge(server, udp, tcp)
		})
	}
	wait.Wait()
	return slices.Concat(lines...)
}

// judge is the verdict on one query to a server of the cluster's names.
func (n *node) judge(line *Line, r result) {
	line.Value = r.String()
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
	default:
		line.Verdict = OK
	}
}

// service is a name that every cluster has.
func (n *node) service() string { return "kubernetes.default.svc." + n.options.domain }

// probeLocal asks the node-local addresses, as a pod does.
func (n *node) probeLocal(ctx context.Context) []Line {
	s := n.setup()
	var servers []netip.AddrPort
	for _, a := range s.addresses {
		servers = append(servers, netip.AddrPortFrom(a, n.options.port))
	}
	by := n.answering(ctx, s)
	return n.askAll(ctx, servers, n.service(), dns.TypeA, func(server netip.AddrPort, udp, tcp result) []Line {
		var lines []Line
		for _, q := range []struct {
			network string
			result
		}{{"udp", udp}, {"tcp", tcp}} {
			line := Line{Check: "query " + server.Addr().String() + " " + q.network}
			n.judge(&line, q.result)
			if q.err == nil {
				line.Value += by(server.Addr())
			}
			switch {
			case line.Verdict == Fail && q.err != nil:
				line.Advice = "pods get no answer: see the lines on this address, its lease and its port above"
			case line.Verdict == Fail:
				line.Advice = "see the lines on cluster DNS below, and the log of nodecache"
			}
			lines = append(lines, line)
		}
		return lines
	})
}

// answering returns a function that says who answers at an address now: without a lease the packets
// go to cluster DNS.
func (n *node) answering(ctx context.Context, s setup) func(netip.Addr) string {
	nobody := func(netip.Addr) string { return "" }
	table := kernel.OwnTable(s.iface)
	rules, err := n.rules()
	if err != nil || !rules.Has(table.Family, table.Name) {
		return nobody
	}
	leases, err := n.leases(ctx, s.iface)
	if err != nil {
		return nobody
	}
	return func(a netip.Addr) string {
		if _, in := leases[a]; in {
			return " from nodecache"
		}
		return " from cluster DNS, the lease is out"
	}
}

// The name that nodecache answers to its own node, and to nobody else, whatever its Corefile says,
// and the text of the answer. It is below the zone of the server block that has the addresses: that
// zone is flagsZone where they come from flags.
const (
	selfName  = "doctor." + nodelocal.HealthLabel
	flagsZone = nodelocaldns.Zone
)

// probeSelf asks nodecache itself, past the lease: with the mark by which it asks itself.
func (n *node) probeSelf(ctx context.Context) []Line {
	s := n.setup()
	lines := make([]Line, len(s.addresses))
	var wait sync.WaitGroup
	for i, a := range s.addresses {
		wait.Go(func() { lines[i] = n.askSelf(ctx, a) })
	}
	wait.Wait()
	return lines
}

// askSelf asks for the name below each zone that the block with the addresses may have, at the same
// time: where the zone is another one, the query is forwarded and may take long.
func (n *node) askSelf(ctx context.Context, a netip.Addr) Line {
	zones := []string{n.setup().zone}
	if zones[0] == "" {
		zones = []string{".", n.options.domain, flagsZone}
	}
	type reply struct {
		answer *dns.Msg
		took   time.Duration
		err    error
	}
	replies := make([]reply, len(zones))
	var wait sync.WaitGroup
	for i, zone := range zones {
		wait.Go(func() {
			r := &replies[i]
			name := selfName + strings.TrimPrefix(zone, ".")
			r.answer, r.took, r.err = n.exchange(ctx, "udp", netip.AddrPortFrom(a, n.options.port), nodelocal.Ask, name, dns.TypeTXT)
		})
	}
	wait.Wait()
	line := Line{Check: "nodecache itself on " + a.String()}
	answered := false
	for i, r := range replies {
		if r.err == nil && isSelf(r.answer) {
			line.Value, line.Verdict = "answers in "+milliseconds(r.took), OK
			n.askArriving(ctx, &line, a, selfName+strings.TrimPrefix(zones[i], "."))
			return line
		}
		answered = answered || r.err == nil
	}
	if !answered {
		line.Value, line.Verdict = reason(replies[0].err), Fail
		line.Advice = "nodecache does not answer the node itself, so it gets no lease: read its log, look at its CPU limit"
		return line
	}
	line.Value, line.Verdict = "another DNS server answers", Warn
	line.Advice = "node-local-dns, or a nodecache without the plugin nodelocal: no lease is held; see who holds the port above"
	return line
}

// askArriving asks nodecache, which has answered over lo, on the way on which its own queries arrive as those of pods
// do, if there is one.
func (n *node) askArriving(ctx context.Context, line *Line, a netip.Addr, name string) {
	in := link.PairOf(n.setup().iface).In
	if !n.hasLink(in) || a.Is6() && a.IsLinkLocalUnicast() {
		return
	}
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	answer, _, err := n.exchangeFrom(ctx, from, "udp", netip.AddrPortFrom(rules.QuestionTarget(a), n.options.port), nil, name, dns.TypeTXT)
	if err == nil && isSelf(answer) {
		return
	}
	line.Value, line.Verdict = "answers over lo, and not on interface "+in, Fail
	line.Advice = "a firewall may reject or drop what arrives on other interfaces than lo, and then also what pods ask: accept UDP and TCP port " +
		strconv.Itoa(int(n.options.port)) + " to " + a.String() + " there; without an answer nodecache gets no lease"
}

// isSelf says whether an answer is nodecache's to its own node.
func isSelf(answer *dns.Msg) bool {
	if answer.Rcode != dns.RcodeSuccess || len(answer.Answer) != 1 {
		return false
	}
	txt, ok := answer.Answer[0].(*dns.TXT)
	return ok && slices.Equal(txt.Txt, []string{nodelocal.HealthText})
}

// probeHealth asks the health endpoint as the kubelet does: one address that answers is enough.
func (n *node) probeHealth(ctx context.Context) []Line {
	endpoints := n.setup().health
	if len(endpoints) == 0 {
		return nil
	}
	var first error
	for _, e := range endpoints {
		url := "http://" + e.String() + "/health"
		took, err := n.get(ctx, url)
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

// get fetches a page and says how long it took. An answer other than 200 is an error.
func (n *node) get(ctx context.Context, url string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, n.options.timeout/2) // several addresses are asked in turn
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // no proxy of the environment
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }() // nothing of it is read
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("answered %s", response.Status)
	}
	return time.Since(start), nil
}

// probeCluster asks cluster DNS, as nodecache does for the cluster's names.
func (n *node) probeCluster(ctx context.Context) []Line {
	s := n.setup()
	if len(s.clusterDNS) == 0 {
		return one("query cluster DNS", "its address is not known here", Skip, "name it with -clusterdns (kubectl -n kube-system get service kube-dns-upstream)")
	}
	return n.askAll(ctx, s.clusterDNS, n.service(), dns.TypeA, func(server netip.AddrPort, udp, tcp result) []Line {
		lines := []Line{{Check: "query cluster DNS " + shown(server) + " udp"}, {Check: "query cluster DNS " + shown(server) + " tcp"}}
		n.judge(&lines[0], udp)
		n.judge(&lines[1], tcp)
		oneWay(lines, udp, tcp, "is kube-proxy running, and has the Service endpoints? kubectl -n kube-system get endpointslices -l k8s-app=kube-dns")
		for i, r := range []result{udp, tcp} {
			if r.err == nil && lines[i].Verdict == Fail {
				lines[i].Advice = "read the log of the cluster DNS pods"
			}
		}
		return lines
	})
}

// probeUpstreams asks the node's resolvers and the Corefile's for the name servers of the root, which
// every resolver knows; whatever it answers, it can be reached.
func (n *node) probeUpstreams(ctx context.Context) []Line {
	s := n.setup()
	_, _, servers, err := n.resolvers()
	if err != nil {
		servers = nil // checkResolvers has a line for it
	}
	for _, u := range s.upstreams {
		if !slices.Contains(servers, u) && !slices.Contains(s.clusterDNS, u) {
			servers = append(servers, u)
		}
	}
	return n.askAll(ctx, servers, ".", dns.TypeNS, func(server netip.AddrPort, udp, tcp result) []Line {
		lines := []Line{{Check: "query upstream " + shown(server) + " udp"}, {Check: "query upstream " + shown(server) + " tcp"}}
		for i, r := range []result{udp, tcp} {
			lines[i].Value, lines[i].Verdict = r.String(), OK
			switch {
			case r.err != nil:
				lines[i].Verdict = Fail
			case r.rcode == dns.RcodeServerFailure:
				lines[i].Verdict, lines[i].Advice = Warn, "it cannot resolve for itself: look at that server"
			case r.took > slow:
				lines[i].Verdict, lines[i].Advice = Warn, "names outside the cluster are slow: look at that server and the way to it"
			}
		}
		oneWay(lines, udp, tcp, "no way to it: a route, a firewall, or the server is down; take it out of the resolvers if it is gone")
		return lines
	})
}

// oneWay judges a server that answers by one transport only: nodecache prefers TCP and falls back to
// UDP, so either is enough. Without both, down is the advice.
func oneWay(lines []Line, udp, tcp result, down string) {
	switch {
	case udp.err != nil && tcp.err != nil:
		lines[0].Advice, lines[1].Advice = down, down
	case tcp.err != nil:
		lines[1].Verdict = Warn
		lines[1].Advice = "nodecache asks it by UDP instead: let TCP port 53 to it through"
	case udp.err != nil:
		lines[0].Verdict = Warn
		lines[0].Advice = "nodecache asks it by TCP; let UDP port 53 to it through, for pods that ask it themselves"
	}
}

// shown is a server without the usual port.
func shown(server netip.AddrPort) string {
	if server.Port() == dnsPort {
		return server.Addr().String()
	}
	return server.String()
}
