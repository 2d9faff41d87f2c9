package nodelocaldns

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/miekg/dns"
)

// A server that is asked over TCP and takes it no longer costs every query that goes there its answer, so
// it is found within 8 s: asked every 5 s, for up to 1 s, and again 1 s later, since one lost connection is
// no reason to reload, which empties the cache. A server that is asked over UDP works; that it might take
// TCP by now is worth a look every 30 s. A good server gets one query per node in 5 s from this.
const (
	probeTimeout = time.Second
	probeEvery   = 5 * time.Second
	probeAgain   = time.Second
	probeUDP     = 6 // times probeEvery: 30 s
)

// The options of forward between which a stanza chooses.
const (
	overTCP = "force_tcp"
	overUDP = "prefer_udp"
)

// prober knows which upstreams answer over TCP.
//
// A stanza of CoreDNS's forward has one transport for all its servers, so one that does not take TCP
// makes the stanza prefer UDP for all. A forward plugin of this module's own may choose for each server.
type prober struct {
	exchange func(network, server string) error // one query, at most probeTimeout
	after    func(time.Duration) <-chan time.Time
	changed  func() // called when another transport is to be used

	changes atomic.Uint64 // how often another transport was to be used

	mu    sync.Mutex
	found map[string]finding
}

func newProber(changed func()) *prober {
	return &prober{exchange: ask, after: time.After, changed: changed, found: map[string]finding{}}
}

// finding is what is known of a server. The reason says why TCP is not used.
type finding struct {
	tcp    bool
	known  bool // it has answered, over one or the other
	reason string
}

// ask sends one query, for the name servers of the root, and takes any answer.
func ask(network, server string) error {
	client := dns.Client{Net: network, Timeout: probeTimeout}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(".", dns.TypeNS), server)
	if reply != nil && err == nil {
		return nil
	}
	return err
}

// transport returns the option of forward for a stanza with these servers, host:port each. Those that
// are not known are asked now.
func (p *prober) transport(servers []string) string {
	var unknown []string
	p.mu.Lock()
	for _, s := range servers {
		if _, ok := p.found[s]; !ok && !slices.Contains(unknown, s) {
			unknown = append(unknown, s)
		}
	}
	p.mu.Unlock()
	for s, f := range p.probe(unknown) {
		if !f.tcp {
			clog.Infof("Upstream %s does not answer over TCP (%s): %s", s, f.reason, overUDP)
		}
		p.remember(s, f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range servers {
		if !p.found[s].tcp {
			return overUDP
		}
	}
	return overTCP
}

func (p *prober) remember(server string, f finding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found[server] = f
}

// keep forgets all servers but these.
func (p *prober) keep(servers []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.found {
		if !slices.Contains(servers, s) {
			delete(p.found, s)
		}
	}
}

// probe asks servers in parallel.
func (p *prober) probe(servers []string) map[string]finding {
	found := make(map[string]finding, len(servers))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() {
			f := p.probeOne(s)
			mu.Lock()
			defer mu.Unlock()
			found[s] = f
		})
	}
	wg.Wait()
	return found
}

func (p *prober) probeOne(server string) finding {
	err := p.exchange("tcp", server)
	if err == nil {
		return finding{tcp: true, known: true}
	}
	return finding{known: p.exchange("udp", server) == nil, reason: err.Error()}
}

// run asks again from time to time, until the context ends.
func (p *prober) run(ctx context.Context) {
	for round := 1; ; round++ {
		select {
		case <-ctx.Done():
			return
		case <-p.after(probeEvery):
		}
		different := p.different(func(_ string, f finding) bool { return f.tcp || round%probeUDP == 0 })
		if len(different) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-p.after(probeAgain):
		}
		again := func(server string, _ finding) bool { _, ok := different[server]; return ok }
		if p.accept(p.different(again)) {
			p.changed()
		}
	}
}

// different asks the servers that are due, and returns those that are not as remembered. A server that
// answers neither way is as remembered: its outage says nothing of TCP.
func (p *prober) different(due func(server string, f finding) bool) map[string]finding {
	p.mu.Lock()
	before := make(map[string]finding, len(p.found))
	var servers []string
	for s, f := range p.found {
		if due(s, f) {
			before[s] = f
			servers = append(servers, s)
		}
	}
	p.mu.Unlock()
	found := p.probe(servers)
	for s, f := range found {
		if !f.known || f.tcp == before[s].tcp && before[s].known {
			delete(found, s)
		}
	}
	return found
}

// accept remembers findings, and tells if one is a reason to reload.
func (p *prober) accept(found map[string]finding) (reload bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s, f := range found {
		before, ok := p.found[s]
		if !ok {
			continue // no longer in use
		}
		p.found[s] = f
		if before.tcp == f.tcp {
			continue
		}
		reload = true
		p.changes.Add(1)
		if f.tcp {
			clog.Infof("Upstream %s answers over TCP", s)
		} else {
			clog.Warningf("Upstream %s no longer answers over TCP: %s", s, f.reason)
		}
	}
	return reload
}
