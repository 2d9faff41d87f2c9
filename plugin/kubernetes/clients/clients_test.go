package clients

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var (
	podIP   = netip.MustParseAddr("10.1.0.1")
	otherIP = netip.MustParseAddr("10.1.0.2")
	podIPv6 = netip.MustParseAddr("fd00::1")
)

// indexOf returns an index with pods, which get different names.
func indexOf(pods ...*index.Pod) *index.Index {
	ix := index.New()
	for _, p := range pods {
		ix.PutPod(p)
	}
	return ix
}

// pod returns a pod of a namespace with modifications.
func pod(namespace, name string, changes ...func(*index.Pod)) *index.Pod {
	p := &index.Pod{Namespace: namespace, Name: name, IPs: []netip.Addr{podIP, podIPv6}}
	for _, change := range changes {
		change(p)
	}
	return p
}

func ending(p *index.Pod)      { p.Ending = true }
func hostNetwork(p *index.Pod) { p.HostNetwork = true }

func says(policy string, searches ...string) func(*index.Pod) {
	return func(p *index.Pod) { p.DNS = &index.PodDNS{Policy: policy, Searches: searches} }
}

// state is the status of a source at a time.
type state struct {
	mu    sync.Mutex
	now   time.Time
	all   []source.Status
	looks int
	host  []string
}

const zone = "cluster.local."

func newState() *state {
	s := &state{now: time.Unix(1_700_000_000, 0), host: []string{"example.org"}}
	s.all = []source.Status{{Resource: source.Pods, Synced: true, Heard: s.now}}
	return s
}

func (s *state) clients(all Pods) *Clients {
	c := New(all, func() []source.Status {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.looks++
		return slices.Clone(s.all)
	}, zone, func() []string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.host
	})
	c.now = func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.now
	}
	return c
}

// list is the search list of a pod without DNS settings.
func list(namespace string, more ...string) []string {
	return append([]string{namespace + ".svc." + zone, "svc." + zone, zone}, more...)
}

// check compares the result for an address with a list, or with the reason why it is unknown.
func check(c *Clients, from netip.Addr, want []string, why searchlist.Unknown) error {
	p, reason := c.Find(from)
	if reason != why || (p != nil) != (why == searchlist.Known) {
		return fmt.Errorf("%v: got %+v, %v, want %v", from, p, reason, why)
	}
	if p != nil && !slices.Equal(p.Suffixes, want) {
		return fmt.Errorf("%v: got %v, want %v", from, p.Suffixes, want)
	}
	return nil
}

func TestFind(t *testing.T) {
	shop := list("shop", "example.org.")
	tests := map[string]struct {
		pods []*index.Pod
		from netip.Addr
		want []string
		why  searchlist.Unknown
	}{
		"a pod":                            {[]*index.Pod{pod("shop", "a")}, podIP, shop, searchlist.Known},
		"its other address":                {[]*index.Pod{pod("shop", "a")}, podIPv6, shop, searchlist.Known},
		"in the form of the other family":  {[]*index.Pod{pod("shop", "a")}, netip.AddrFrom16(podIP.As16()), shop, searchlist.Known},
		"with the link it came by":         {[]*index.Pod{pod("shop", "a")}, podIPv6.WithZone("eth0"), shop, searchlist.Known},
		"another address":                  {[]*index.Pod{pod("shop", "a")}, otherIP, nil, searchlist.NoPod},
		"no address":                       {[]*index.Pod{pod("shop", "a")}, netip.Addr{}, nil, searchlist.NoPod},
		"no pod":                           {nil, podIP, nil, searchlist.NoPod},
		"the host network":                 {[]*index.Pod{pod("kube-system", "a", hostNetwork)}, podIP, nil, searchlist.HostNetwork},
		"pods of the host network":         {[]*index.Pod{pod("a", "a", hostNetwork), pod("b", "b", hostNetwork)}, podIP, nil, searchlist.HostNetwork},
		"a pod and the host network":       {[]*index.Pod{pod("shop", "a"), pod("b", "b", hostNetwork)}, podIP, nil, searchlist.HostNetwork},
		"the host network and a pod":       {[]*index.Pod{pod("b", "b", hostNetwork), pod("shop", "a")}, podIP, nil, searchlist.HostNetwork},
		"ending on the host network":       {[]*index.Pod{pod("b", "b", hostNetwork, ending)}, podIP, nil, searchlist.HostNetwork},
		"ending":                           {[]*index.Pod{pod("shop", "a", ending)}, podIP, nil, searchlist.Ending},
		"two that end":                     {[]*index.Pod{pod("shop", "a", ending), pod("shop", "b", ending)}, podIP, nil, searchlist.Ending},
		"two of a namespace":               {[]*index.Pod{pod("shop", "a"), pod("shop", "b")}, podIP, shop, searchlist.Known},
		"two namespaces":                   {[]*index.Pod{pod("shop", "a"), pod("bank", "a")}, podIP, nil, searchlist.Ambiguous},
		"one that ends, of another":        {[]*index.Pod{pod("bank", "a", ending), pod("shop", "b")}, podIP, nil, searchlist.Ambiguous},
		"another, and one that ends":       {[]*index.Pod{pod("shop", "b"), pod("bank", "a", ending)}, podIP, nil, searchlist.Ambiguous},
		"one that ends, of the same":       {[]*index.Pod{pod("shop", "a", ending), pod("shop", "b")}, podIP, shop, searchlist.Known},
		"the same, and one that ends":      {[]*index.Pod{pod("shop", "b"), pod("shop", "a", ending)}, podIP, shop, searchlist.Known},
		"the third differs":                {[]*index.Pod{pod("shop", "a"), pod("shop", "b"), pod("bank", "c")}, podIP, nil, searchlist.Ambiguous},
		"one says something":               {[]*index.Pod{pod("shop", "a"), pod("shop", "b", says("ClusterFirst", "corp.test"))}, podIP, nil, searchlist.Ambiguous},
		"the other way round":              {[]*index.Pod{pod("shop", "b", says("ClusterFirst", "corp.test")), pod("shop", "a")}, podIP, nil, searchlist.Ambiguous},
		"they say the same":                {[]*index.Pod{pod("shop", "a", says("None", "corp.test")), pod("shop", "b", says("None", "corp.test"))}, podIP, []string{"corp.test."}, searchlist.Known},
		"they say the same of two of them": {[]*index.Pod{pod("shop", "a", says("None", "corp.test")), pod("bank", "b", says("None", "corp.test"))}, podIP, nil, searchlist.Ambiguous},
		"another policy":                   {[]*index.Pod{pod("shop", "a", says("None", "corp.test")), pod("shop", "b", says("Default", "corp.test"))}, podIP, nil, searchlist.Ambiguous},
		"other searches":                   {[]*index.Pod{pod("shop", "a", says("None", "corp.test")), pod("shop", "b", says("None", "corp.test", "eu.test"))}, podIP, nil, searchlist.Ambiguous},
		"more suffixes":                    {[]*index.Pod{pod("shop", "a", says("ClusterFirst", "corp.test"))}, podIP, append(slices.Clone(shop), "corp.test."), searchlist.Known},
		"its own suffixes":                 {[]*index.Pod{pod("shop", "a", says("None", "corp.test"))}, podIP, []string{"corp.test."}, searchlist.Known},
		"those of the node":                {[]*index.Pod{pod("shop", "a", says("Default"))}, podIP, []string{"example.org."}, searchlist.Known},
		"none":                             {[]*index.Pod{pod("shop", "a", says("None"))}, podIP, nil, searchlist.NoList},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newState().clients(indexOf(tt.pods...))
			for range 2 {
				if err := check(c, tt.from, tt.want, tt.why); err != nil {
					t.Error(err)
				}
			}
			if c.Zone() != zone {
				t.Errorf("the zone is %q", c.Zone())
			}
		})
	}
}

func TestUnknownString(t *testing.T) {
	seen := map[string]bool{}
	for u := range searchlist.Reasons {
		if s := u.String(); seen[s] || (s == "") != (u == searchlist.Known) {
			t.Errorf("reason %d is %q", u, s)
		} else {
			seen[s] = true
		}
	}
}

// TestOutdated asserts that pods are not used while their watch is silent, and are again as soon as it is not.
func TestOutdated(t *testing.T) {
	heard := func(d time.Duration) func(s *state) { return func(s *state) { s.all[0].Heard = s.now.Add(-d) } }
	tests := map[string]struct {
		change func(s *state)
		want   searchlist.Unknown
	}{
		"just heard of":        {heard(0), searchlist.Known},
		"long ago":             {heard(maxSilence), searchlist.Known},
		"too long ago":         {heard(maxSilence + 1), searchlist.Outdated},
		"never":                {func(s *state) { s.all[0].Heard = time.Time{} }, searchlist.Outdated},
		"in the future":        {heard(-time.Hour), searchlist.Known},
		"not read":             {func(s *state) { s.all[0].Synced = false }, searchlist.Outdated},
		"frozen":               {func(s *state) { s.all[0].Frozen = true }, searchlist.Outdated},
		"nothing is said":      {func(s *state) { s.all = nil }, searchlist.Outdated},
		"nothing of pods":      {func(s *state) { s.all[0].Resource = source.Services }, searchlist.Outdated},
		"others are not heard": {func(s *state) { s.all = append(s.all, source.Status{Resource: source.Services}) }, searchlist.Known},
		"others are heard of": {func(s *state) {
			s.all = append([]source.Status{{Resource: source.Nodes, Synced: true, Heard: s.now}}, source.Status{Resource: source.Pods})
		}, searchlist.Outdated},
		"one source of several": {func(s *state) { s.all = append([]source.Status{{Resource: source.Pods, Heard: s.now}}, s.all...) }, searchlist.Outdated},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newState()
			c := s.clients(indexOf(pod("shop", "a"), pod("b", "b", hostNetwork, func(p *index.Pod) { p.IPs = []netip.Addr{otherIP} })))
			tt.change(s)
			var want []string
			if tt.want == searchlist.Known {
				want = list("shop", "example.org.")
			}
			if err := check(c, podIP, want, tt.want); err != nil {
				t.Error(err)
			}
			if err := check(c, otherIP, nil, searchlist.HostNetwork); err != nil {
				t.Error(err)
			}
			if tt.want == searchlist.Known {
				return
			}
			if err := check(c, netip.MustParseAddr("10.9.9.9"), nil, searchlist.Outdated); err != nil { // there may be a pod
				t.Error(err)
			}
			s.all = []source.Status{{Resource: source.Pods, Synced: true, Heard: s.now}}
			if err := check(c, podIP, list("shop", "example.org."), searchlist.Known); err != nil {
				t.Errorf("after the silence: %v", err)
			}
		})
	}
}

// TestSilence asserts that a silent source is detected within a second, without a check for each query; and also after the
// clock was set back.
func TestSilence(t *testing.T) {
	s := newState()
	c := s.clients(indexOf(pod("shop", "a")))
	want := list("shop", "example.org.")
	for range 100 {
		kit.Must(t, check(c, podIP, want, searchlist.Known))
	}
	if s.looks != 1 {
		t.Errorf("%d checks within a second", s.looks)
	}
	s.all[0].Synced = false
	s.now = s.now.Add(statusInterval - 1)
	if err := check(c, podIP, want, searchlist.Known); err != nil {
		t.Error(err)
	}
	s.now = s.now.Add(1)
	if err := check(c, podIP, nil, searchlist.Outdated); err != nil {
		t.Error(err)
	}
	s.all[0].Synced = true
	if err := check(c, podIP, want, searchlist.Known); err != nil {
		t.Error(err)
	}
	s.all[0].Synced = false
	s.now = s.now.Add(-time.Hour)
	if err := check(c, podIP, nil, searchlist.Outdated); err != nil {
		t.Errorf("set back: %v", err)
	}
}

// TestStories moves addresses from one pod to another in the steps in which the index changes. A pod never has the list of
// the previous one.
func TestStories(t *testing.T) {
	type step struct {
		put    *index.Pod // or
		delete *index.Pod
		want   []string
		why    searchlist.Unknown
	}
	shop, bank := list("shop", "example.org."), list("bank", "example.org.")
	unread := func(p *index.Pod) { p.IPs = nil }
	tests := map[string][]step{
		"the old one goes first": {
			{put: pod("shop", "old"), want: shop},
			{put: pod("shop", "old", ending), why: searchlist.Ending},
			{put: pod("bank", "new", unread), why: searchlist.Ending},
			{delete: pod("shop", "old"), why: searchlist.NoPod},
			{put: pod("bank", "new"), want: bank},
		},
		"the new one comes first": {
			{put: pod("shop", "old"), want: shop},
			{put: pod("shop", "old", ending), why: searchlist.Ending},
			{put: pod("bank", "new"), why: searchlist.Ambiguous},
			{delete: pod("shop", "old"), want: bank},
		},
		"the end is not seen": {
			{put: pod("shop", "old"), want: shop},
			{put: pod("bank", "new"), why: searchlist.Ambiguous},
			{delete: pod("shop", "old"), want: bank},
		},
		"the new one is deleted as well": {
			{put: pod("shop", "old", ending), why: searchlist.Ending},
			{put: pod("bank", "new"), why: searchlist.Ambiguous},
			{put: pod("bank", "new", ending), why: searchlist.Ambiguous},
			{delete: pod("shop", "old"), why: searchlist.Ending},
			{delete: pod("bank", "new"), why: searchlist.NoPod},
		},
		"of one namespace": {
			{put: pod("shop", "old"), want: shop},
			{put: pod("shop", "old", ending), why: searchlist.Ending},
			{put: pod("shop", "new"), want: shop},
			{delete: pod("shop", "old"), want: shop},
		},
		"of one name, with another list": {
			{put: pod("shop", "a"), want: shop},
			{put: pod("shop", "a", ending), why: searchlist.Ending},
			{delete: pod("shop", "a"), why: searchlist.NoPod},
			{put: pod("shop", "a", says("None", "corp.test")), want: []string{"corp.test."}},
			{put: pod("shop", "a", says("None", "corp.test", "eu.test")), want: []string{"corp.test.", "eu.test."}},
			{put: pod("shop", "a"), want: shop},
		},
		"a pod takes its address with it": {
			{put: pod("shop", "a"), want: shop},
			{put: pod("shop", "a", func(p *index.Pod) { p.IPs = []netip.Addr{otherIP} }), why: searchlist.NoPod},
			{put: pod("bank", "b"), want: bank},
			{put: pod("shop", "a"), why: searchlist.Ambiguous},
		},
		"the node takes the address": {
			{put: pod("shop", "a"), want: shop},
			{put: pod("kube-system", "proxy", hostNetwork), why: searchlist.HostNetwork},
			{delete: pod("shop", "a"), why: searchlist.HostNetwork},
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			ix := index.New()
			c := newState().clients(ix)
			for i, s := range steps {
				if s.put != nil {
					ix.PutPod(s.put)
				} else {
					ix.DeletePod(s.delete.Namespace, s.delete.Name)
				}
				for _, from := range []netip.Addr{podIP, podIPv6} {
					if err := check(c, from, s.want, s.why); err != nil {
						t.Errorf("step %d: %v", i, err)
					}
				}
			}
		})
	}
}

// TestHost changes the search list of the node. Lists that are used again have the same IDs.
func TestHost(t *testing.T) {
	s := newState()
	c := s.clients(indexOf(
		pod("shop", "a"),
		pod("bank", "b", says("None", "corp.test"), func(p *index.Pod) { p.IPs = []netip.Addr{otherIP} }),
	))
	numbers := map[string]uint32{}
	for i, host := range [][]string{{"example.org"}, {"example.com"}, nil, {}, {"example.org"}, {"example.org", "example.com"}, {"example.com"}} {
		s.host = host
		want := list("shop")
		for _, h := range host {
			want = append(want, h+".")
		}
		for range 2 {
			if err := check(c, podIP, want, searchlist.Known); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			if err := check(c, otherIP, []string{"corp.test."}, searchlist.Known); err != nil {
				t.Errorf("step %d: %v", i, err)
			}
		}
		p, _ := c.Find(podIP)
		if was, ok := numbers[fmt.Sprint(want)]; ok && was != p.ID {
			t.Errorf("step %d: number %d, it was %d", i, p.ID, was)
		}
		for other, number := range numbers {
			if other != fmt.Sprint(want) && number == p.ID {
				t.Errorf("step %d: number %d is that of %s", i, number, other)
			}
		}
		numbers[fmt.Sprint(want)] = p.ID
	}
}

// TestManyPods asserts that the number of cached lists is bounded.
func TestManyPods(t *testing.T) {
	at, s := 0, newState()
	c := s.clients(podsFunc(func() *index.Pod { return pod(fmt.Sprint("ns", at), "a") }))
	full := &lists{host: s.host, list: map[podDNS]*searchlist.List{}}
	for n := range maxCached - 5 {
		full.list[podDNS{namespace: fmt.Sprint("filler", n)}] = nil
	}
	c.lists.Store(full)
	for at = range 20 {
		kit.Must(t, check(c, podIP, list(fmt.Sprint("ns", at), "example.org."), searchlist.Known))
		if n := len(c.lists.Load().list); n > maxCached {
			t.Fatalf("%d lists are cached", n)
		}
	}
}

type podsFunc func() *index.Pod

func (f podsFunc) TenantsOf(netip.Addr) index.Tenants { return index.Tenants{Pod: f(), Alike: true} }

// TestFindAllocates nothing once a list is known.
func TestFindAllocates(t *testing.T) {
	ix := index.New()
	ix.PutPod(pod("shop", "a"))
	ix.PutPod(pod("shop", "b", says("None", "corp.test"), func(p *index.Pod) { p.IPs = []netip.Addr{otherIP} }))
	c := newState().clients(ix)
	for _, from := range []netip.Addr{podIP, otherIP, netip.AddrFrom16(podIP.As16())} {
		c.Find(from)
		if n := testing.AllocsPerRun(100, func() { c.Find(from) }); n != 0 {
			t.Errorf("%v: %v allocations", from, n)
		}
	}
}

// TestWhileWritten finds clients while pods are created and deleted, the source falls silent and the host's list changes. A
// result between two changes is that of the state between them.
func TestWhileWritten(t *testing.T) {
	const rounds, readers = 2000, 4
	ix, s := index.New(), newState()
	c := s.clients(ix)
	type known struct {
		phase int64 // odd during a write
		want  []string
		why   searchlist.Unknown
	}
	var now atomic.Pointer[known]
	now.Store(&known{why: searchlist.NoPod})
	become := func(write func(), want []string, why searchlist.Unknown) {
		phase := now.Load().phase
		now.Store(&known{phase: phase + 1})
		write()
		now.Store(&known{phase: phase + 2, want: want, why: why})
	}
	var wait sync.WaitGroup
	var ended atomic.Bool
	var compared atomic.Int64
	for range readers {
		wait.Go(func() {
			for !ended.Load() {
				before := now.Load()
				p, why := c.Find(podIP)
				if before.phase%2 == 1 || now.Load() != before {
					continue
				}
				compared.Add(1)
				if why != before.why || p != nil && !slices.Equal(p.Suffixes, before.want) {
					t.Errorf("phase %d: got %+v, %v, want %v, %v", before.phase, p, why, before.want, before.why)
					return
				}
			}
		})
	}
	hosts := [][]string{{"example.org"}, {"example.com"}}
	for i := range rounds {
		ns, other := fmt.Sprint("ns", i%7), fmt.Sprint("ns", (i+1)%7)
		host := hosts[i%2]
		become(func() { s.mu.Lock(); s.host = host; s.mu.Unlock() }, nil, searchlist.NoPod)
		become(func() { ix.PutPod(pod(ns, "old")) }, list(ns, host[0]+"."), searchlist.Known)
		become(func() { ix.PutPod(pod(ns, "old", ending)) }, nil, searchlist.Ending)
		become(func() { ix.PutPod(pod(other, "new", says("ClusterFirst", "corp.test"))) }, nil, searchlist.Ambiguous)
		become(func() { ix.DeletePod(ns, "old") }, list(other, host[0]+".", "corp.test."), searchlist.Known)
		become(func() { ix.PutPod(pod("kube-system", "proxy", hostNetwork)) }, nil, searchlist.HostNetwork)
		become(func() { ix.DeletePod("kube-system", "proxy"); ix.DeletePod(other, "new") }, nil, searchlist.NoPod)
	}
	for compared.Load() < 100 { // until readers had a chance to run
		time.Sleep(time.Millisecond)
	}
	ended.Store(true)
	wait.Wait()
	t.Logf("%d lookups between two changes", compared.Load())
}
