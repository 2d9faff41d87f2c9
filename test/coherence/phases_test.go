//go:build linux

package coherence

import (
	"slices"
	"syscall"
	"time"

	"github.com/nearside-dns/nearside/test/kubeapi"
)

// calm is the time after a fault in which answers have to be as if it had not been.
const calm = 2 * time.Second

// phases are those of TestHistory.
var phases = []phase{
	{requirements: requirements{"no fault", 1, 0.1}, calm: 8 * time.Second},
	{requirements: requirements{"clusterdns stopped", 0.98, 0}, fault: stopped, calm: calm, want: fellBack("silent")},
	{requirements: requirements{"clusterdns killed", 0.8, 0}, fault: killed, calm: calm, want: both(fellBack("closed"), failed)},
	{requirements: requirements{"connections cut", 0.98, 0}, fault: cut, calm: calm, want: fellBack("closed")},
	{requirements: requirements{"connections delayed by 0.3 s", 0.98, 0}, fault: delayed(300 * time.Millisecond), strict: true, calm: calm, want: beyondTTL},
	{requirements: requirements{"connections delayed by 3 s", 0.7, 0}, fault: delayed(3 * time.Second), delay: 3 * time.Second, calm: calm, want: fellBack("silent", "closed", "clock")},
	{requirements: requirements{"connections stalled", 0.9, 0}, fault: stalled, strict: true, calm: calm, want: fellBack("silent")},
	{requirements: requirements{"frozen watches", 0.98, 0}, fault: frozen, calm: calm, want: fellBack("silent")},
	{requirements: requirements{"clusterdns reloaded", 0.98, 0}, fault: clusterReloaded, strict: true, calm: calm, want: beyondTTL},
	{requirements: requirements{"node caches reloaded", 0.98, 0}, fault: cachesReloaded, calm: calm, want: beyondTTL},
	{requirements: requirements{"node cache stopped", 0.5, 0}, fault: cacheStopped, strict: true, calm: calm, want: both(beyondTTL, leaseEnded)},
	{requirements: requirements{"switch of replicas", 0.85, 0}, fault: switched, calm: calm, want: both(fellBack("closed"), failed)},
}

// phaseNamed returns a phase of TestHistory.
func phaseNamed(name string) phase {
	return phases[slices.IndexFunc(phases, func(p phase) bool { return p.name == name })]
}

// stopped stops clusterdns with SIGSTOP for 3 s.
func stopped(h *history) {
	h.last().Signal(h.t, syscall.SIGSTOP)
	time.Sleep(3 * time.Second)
	h.last().Signal(h.t, syscall.SIGCONT)
}

// last returns the replica that the caches query.
func (h *history) last() *replica { return h.replicas[len(h.replicas)-1] }

// partRead is the time for which a clusterdns that starts gets no list of one resource.
const partRead = time.Second

// killed kills clusterdns and starts another, which answers queries while it has no Services.
func killed(h *history) {
	old := h.last()
	old.kill(h.t)
	old.to = monotonic()
	for _, p := range h.proxies {
		p.refuse()
	}
	h.api.Hang(kubeapi.Services, true)
	h.redirect(h.startUnread())
	for _, p := range h.proxies {
		p.listen(h.t)
	}
	time.Sleep(partRead)
	h.api.Hang(kubeapi.Services, false)
}

func (h *history) redirect(r *replica) {
	for _, p := range h.proxies {
		p.redirect(r.Addr)
	}
}

// cut ends the connections of the caches every half second.
func cut(h *history) {
	for range 6 {
		for _, p := range h.proxies {
			p.cut()
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// delayed delays what the connections carry.
func delayed(by time.Duration) func(h *history) {
	return func(h *history) {
		h.delay(by)
		time.Sleep(max(3*time.Second, 2*by))
		h.delay(0)
	}
}

func (h *history) delay(by time.Duration) {
	for _, p := range h.proxies {
		p.delay.Store(int64(by))
	}
}

// stall is the time for which connections carry nothing, longer than the TTL.
const stall = 4 * time.Second

// stalled stops what the connections carry, without an end of any. Meanwhile answers are as old as their TTL at most; afterwards
// those arrive that were on their way.
func stalled(h *history) {
	begin := monotonic()
	h.hold(true)
	time.Sleep(stall)
	h.fallbacks = append(h.fallbacks, fallback{begin, monotonic(), ttl + transit})
	begin = monotonic()
	h.hold(false)
	h.awaitSessions()
	h.fallbacks = append(h.fallbacks, fallback{begin, monotonic() + int64(ttl+stall), ttl + stall + transit})
	time.Sleep(ttl + stall)
}

func (h *history) hold(held bool) {
	for _, p := range h.proxies {
		p.held.Store(held)
	}
}

// frozen stops the events of the API server, until the watchdog of clusterdns has noticed.
func frozen(h *history) {
	h.api.Hang("", true)
	time.Sleep(6 * time.Second)
	h.api.Hang("", false)
}

// clusterReloaded has clusterdns answer for fewer namespaces, and after a while for all again. The replaced server answers its
// queries in progress without handles: these answers may be as old as their TTL.
func clusterReloaded(h *history) {
	for _, fewer := range []bool{true, false} {
		begin := monotonic()
		if fewer {
			h.reload([]string{"shop", "bank"}, "pods verified", "pods verified\n        namespaces shop bank")
		} else {
			h.reload(nil)
		}
		h.fallbacks = append(h.fallbacks, fallback{begin, monotonic() + int64(ttl), ttl})
		time.Sleep(ttl + calm)
	}
}

// reload reloads clusterdns with another configuration.
func (h *history) reload(namespaces []string, replacements ...string) {
	next := epoch{monotonic(), forever, namespaces}
	h.last().reload(h.t, replacements...)
	h.epochs[len(h.epochs)-1].to = monotonic()
	h.epochs = append(h.epochs, next)
}

// cachesReloaded reloads the node caches.
func cachesReloaded(h *history) {
	for _, c := range h.caches {
		c.reload(h.t, "# COMMENT", "# changed")
	}
}

// switched replaces clusterdns by another replica, while the first still runs. The other one answers queries while it has no
// namespaces.
func switched(h *history) {
	h.api.Hang(kubeapi.Namespaces, true)
	h.redirect(h.startUnread())
	time.Sleep(partRead)
	h.api.Hang(kubeapi.Namespaces, false)
}
