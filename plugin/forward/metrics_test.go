package forward

import "testing"

// The metrics of an upstream are removed after its last stanza has stopped.
func TestSeries(t *testing.T) {
	f, servers := forwardTo(t, "force_tcp", good, good)
	gone, stays := servers[0].Addr, servers[1].Addr
	for range 20 { // the policy is random
		wantRight(t, f, false, "www.example.")
	}
	sum := func(to string) float64 {
		return metric(t, "coredns_proxy_request_duration_seconds", "to", to) + metric(t, "nearside_forward_packets_total", "to", to)
	}
	other := newForward(f.config)
	other.use([]endpoint{upstreamOf(f, 0).endpoint})
	f.use([]endpoint{upstreamOf(f, 1).endpoint})
	used.remove(gone)
	if sum(gone) == 0 || sum(stays) == 0 {
		t.Errorf("metrics are %v and %v while both upstreams are used", sum(gone), sum(stays))
	}
	other.stop()
	used.remove(gone)
	used.remove(stays)
	if sum(gone) > 0 || sum(stays) == 0 {
		t.Errorf("metrics are %v of the unused upstream, want 0, and %v of the used one", sum(gone), sum(stays))
	}
}

// TestSeriesOfSessions: the metrics of sessions end with the last stanza that has option coherent, while another one without it
// uses the address. Otherwise, the alert for an upstream without a session would fire after a reload without the option.
func TestSeriesOfSessions(t *testing.T) {
	f, servers := forwardTo(t, "coherent", good)
	to := servers[0].Addr
	sessions := func() (n int) {
		for _, m := range seriesOf(t, coherenceSessions) {
			if has(m, []string{"to", to}) {
				n++
			}
		}
		return n
	}
	plain := f.config
	plain.coherent = false
	other := newForward(plain)
	other.use([]endpoint{upstreamOf(f, 0).endpoint})
	t.Cleanup(other.stop)
	used.remove(to)
	if sessions() != 1 {
		t.Errorf("%d series while a stanza has sessions, want 1", sessions())
	}
	f.stop()
	used.remove(to)
	if sessions() != 0 {
		t.Errorf("%d series after the last stanza with sessions has stopped, want 0", sessions())
	}
}
