//go:build linux

package multicluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kit"
)

// versions is the number of changes of each subject.
const versions = 20

const (
	// cachedFor is less than the time for which the caches here store answers that no change invalidates.
	cachedFor = 25 * time.Second
	// soon is the maximum time of most changes on a busy machine without a forced wait.
	soon = 4 * time.Second
)

// subject is an object that changes, from version to version, and its answer, which identifies the version.
type subject struct {
	name   string
	qtype  uint16
	change func(t *testing.T, version int)
	answer func(version int) string
}

// subjects are parts of an import and of its EndpointSlices, and the import itself.
func subjects(c *cluster) []subject {
	changing := func(edit func(s *mcsv1beta1.ServiceImport, version int)) func(*testing.T, int) {
		return func(t *testing.T, version int) {
			t.Helper()
			s := &mcsv1beta1.ServiceImport{ObjectMeta: meta("changing")}
			s.Spec = mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.112.9.1"}, Ports: []mcsv1beta1.ServicePort{{Port: 1}}}
			edit(s, version)
			c.applyImport(t, s)
		}
	}
	moving := func(t *testing.T, version int) {
		t.Helper()
		e := endpoint{number: 100 + version, hostname: "pod"}
		c.applySlice(t, c.sliceOf("moving", importedLabels("moving", c.id), discoveryv1.AddressTypeIPv4, e))
	}
	moved := func(version int) string { return c.v4(100 + version) }
	address := func(version int) string { return fmt.Sprint("10.112.9.", version) }
	return []subject{
		{"changing" + inSet, dns.TypeA, changing(func(s *mcsv1beta1.ServiceImport, version int) { s.Spec.IPs[0] = address(version) }), address},
		{
			"changing" + inSet, dns.TypeSRV,
			changing(func(s *mcsv1beta1.ServiceImport, version int) { s.Spec.Ports[0].Port = int32(1000 + version) }),
			func(version int) string { return fmt.Sprintf("%d changing%s", 1000+version, inSet) },
		},
		{"moving" + inSet, dns.TypeA, moving, moved},
		{"pod.west.moving" + inSet, dns.TypeA, moving, moved},
		{
			"passing" + inSet, dns.TypeA,
			func(t *testing.T, version int) {
				t.Helper()
				if version%2 == 0 {
					c.deleteImport(t, "passing")
					return
				}
				s := &mcsv1beta1.ServiceImport{ObjectMeta: meta("passing")}
				s.Spec = mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: []string{address(version)}, Ports: []mcsv1beta1.ServicePort{}}
				c.applyImport(t, s)
			},
			func(version int) string {
				if version%2 == 0 {
					return "NXDOMAIN"
				}
				return address(version)
			},
		},
	}
}

// history is the latest version that a server has returned: no later query may return an earlier one.
type history struct {
	subject
	address string

	mu    sync.Mutex
	made  int // the API's version, or the next one
	known int // the newest in a reply
}

func (h *history) make(version int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.made = version
}

// seen records a reply to a query that was sent when an older version was known, and returns its error.
func (h *history) seen(older int, got string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for version := h.made; version >= older; version-- {
		if h.answer(version) == got {
			h.known = max(h.known, version)
			return nil
		}
	}
	return fmt.Errorf("%s %s %s: got %q after %q, and %q is the newest", h.address, h.name, dns.TypeToString[h.qtype], got, h.answer(older), h.answer(h.made))
}

func (h *history) newest() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.known
}

// ask sends one query, in the form that the fast path answers.
func (h *history) ask(network string) error {
	older := h.newest()
	client := dns.Client{Net: network, Timeout: bounded}
	m, _, err := client.Exchange(new(dns.Msg).SetQuestion(h.name, h.qtype), h.address)
	if err != nil {
		return err
	}
	return h.seen(older, textOf(m))
}

// textOf is reply.String of a message.
func textOf(m *dns.Msg) string {
	var all []string
	for _, rr := range m.Answer {
		switch rr := rr.(type) {
		case *dns.A:
			all = append(all, rr.A.String())
		case *dns.SRV:
			all = append(all, fmt.Sprintf("%d %s", rr.Port, rr.Target))
		}
	}
	if len(all) == 0 {
		return dns.RcodeToString[m.Rcode]
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// testGenerations changes imports under continuous queries: answers change at once, also if they are cached for longer
// than the test waits, and no answer from before a change returns.
func testGenerations(t *testing.T, cs *clusterset, s *server) {
	servers := []asking{cs.west.main.at(""), s.at(cached), s.at(cachedNarrowly)}
	moving := &mcsv1beta1.ServiceImport{ObjectMeta: meta("moving"), Spec: mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.Headless, Ports: []mcsv1beta1.ServicePort{}}}
	cs.west.applyImport(t, moving)
	var took []time.Duration
	for _, sub := range subjects(cs.west) {
		t.Run(sub.name+" "+dns.TypeToString[sub.qtype], func(t *testing.T) {
			took = append(took, follow(t, sub, servers)...)
		})
	}
	slices.Sort(took)
	t.Logf("%d changes: half of them seen by all servers within %v, the last after %v", len(took), took[len(took)/2], took[len(took)-1])
	if half, last := took[len(took)/2], took[len(took)-1]; half > soon || last > cachedFor {
		t.Errorf("they are to take less than %v and %v", soon, cachedFor)
	}
}

// follow changes a subject, and returns the time until all servers return the new answer.
func follow(t *testing.T, sub subject, servers []asking) (took []time.Duration) {
	t.Helper()
	sub.change(t, 1)
	var all []*history
	for _, a := range servers {
		a.await(t, "the first version", wish{sub.name, dns.TypeToString[sub.qtype], sub.answer(1)})
		all = append(all, &history{subject: sub, address: a.address, made: 1, known: 1})
	}
	stop := askAlways(t, all)
	defer stop()
	for version := 2; version < 2+versions; version++ {
		for _, h := range all {
			h.make(version)
		}
		sub.change(t, version)
		begin := time.Now()
		for i, a := range servers {
			kit.Succeeds(t, bounded, fmt.Sprint("version ", version), func() error {
				return a.check(wish{sub.name, dns.TypeToString[sub.qtype], sub.answer(version)})
			})
			kit.Must(t, all[i].seen(1, sub.answer(version)))
		}
		took = append(took, time.Since(begin))
		if t.Failed() {
			break
		}
	}
	return took
}

// askEvery is the pause between two queries of the background load.
const askEvery = 5 * time.Millisecond

// askAlways queries all servers over UDP and TCP until stop is called.
func askAlways(t *testing.T, all []*history) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, h := range all {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				case <-time.After(askEvery):
				}
				network := "udp"
				if n%8 == 0 {
					network = "tcp"
				}
				if err := h.ask(network); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return func() {
		close(done)
		wg.Wait()
	}
}
