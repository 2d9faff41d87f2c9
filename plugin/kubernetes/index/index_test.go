package index

import (
	"net/netip"
	"testing"
)

// TestOnce puts records with duplicate addresses: readers find each record once.
func TestOnce(t *testing.T) {
	twice := []netip.Addr{webIP, webIP}
	ix := New()
	ix.PutService(with(web(), func(s *Service) { s.IPs, s.External = twice, &External{IPs: twice} }))
	ix.PutSlice(with(webSlice(), func(s *Slice) { s.Endpoints = []Endpoint{{Addr: webIP}, {Addr: webIP, Name: "a"}} }))
	ix.PutPod(with(webPod(), func(p *Pod) { p.IPs = twice }))
	tests := []struct {
		name string
		find func() int
	}{
		{"ServicesByIP", func() int { return len(ix.ServicesByIP(webIP)) }},
		{"ServicesByExternalIP", func() int { return len(ix.ServicesByExternalIP(webIP)) }},
		{"SlicesByIP", func() int { return len(ix.SlicesByIP(webIP)) }},
		{"PodsByIP", func() int { return len(ix.PodsByIP(webIP)) }},
		{"Services", func() int { return len(ix.Services()) }},
	}
	for _, put := range []string{"put", "put again, equal", "deleted"} {
		want := 1
		switch put {
		case "put again, equal":
			ix.PutService(copyService(ix.ServiceRecord("default", "web")))
			ix.PutSlice(copySlice(ix.SliceRecord("default", "web-1")))
			ix.PutPod(copyPod(ix.PodRecord("default", "web-a")))
		case "deleted":
			ix.DeleteService("default", "web")
			ix.DeleteSlice("default", "web-1")
			ix.DeletePod("default", "web-a")
			want = 0
		}
		for _, tt := range tests {
			t.Run(tt.name+" "+put, func(t *testing.T) {
				if got := tt.find(); got != want {
					t.Errorf("found %d times, want %d", got, want)
				}
			})
		}
	}
}

// TestReplaceWithTheSameNameTwice lists one name twice, as two manifest files may: the last one is used.
func TestReplaceWithTheSameNameTwice(t *testing.T) {
	ix, m := New(), newModel()
	a := &alphabet{
		namespaces: []string{"default"}, services: []string{"web", "other"}, slices: []string{"web-1"}, pods: []string{"web-a"},
		v4: []netip.Addr{webIP, otherIP, endpointIP, movedIP, podIP},
	}
	for round := range 2 {
		services := []*Service{web(), with(web(), func(s *Service) { s.IPs[0] = otherIP })}
		slices := []*Slice{webSlice(), with(webSlice(), func(s *Slice) { s.Service, s.Endpoints[0].Addr = "other", movedIP })}
		pods := []*Pod{webPod(), with(webPod(), func(p *Pod) { p.IPs[0] = movedIP })}
		for _, w := range []writer{m, ix} {
			w.ReplaceServices(services)
			w.ReplaceSlices(slices)
			w.ReplacePods(pods)
			w.ReplaceNamespaces([]string{"default", "default"})
		}
		if err := m.compare(ix, a); err != nil {
			t.Errorf("round %d: %v", round, err)
		}
	}
}

// TestModelCanFail asserts that the comparison with the model detects an index that differs.
func TestModelCanFail(t *testing.T) {
	a := newAlphabet(1, 1, 1)
	k := Name{a.namespaces[0], a.services[0]}
	tests := []struct {
		name   string
		change func(*Index)
	}{
		{"Service", func(ix *Index) { ix.PutService(&Service{Namespace: k.Namespace, Name: k.Name}) }},
		{"ClusterIP", func(ix *Index) { ix.clusterIPs.add(a.v4[0], &Service{Namespace: k.Namespace, Name: k.Name}) }},
		{"external address", func(ix *Index) { ix.externals.add(a.v4[0], &Service{Namespace: k.Namespace, Name: k.Name}) }},
		{"EndpointSlice", func(ix *Index) {
			ix.PutSlice(&Slice{Namespace: k.Namespace, Name: a.slices[0], Service: k.Name})
		}},
		{"endpoint", func(ix *Index) {
			s := &Slice{Namespace: k.Namespace, Name: a.slices[0], Service: k.Name, Endpoints: []Endpoint{{Addr: a.v6[0]}}}
			s.Pack()
			ix.endpoints.move(nil, s)
		}},
		{"namespace", func(ix *Index) { ix.PutNamespace(k.Namespace) }},
		{"pod", func(ix *Index) { ix.PutPod(&Pod{Namespace: k.Namespace, Name: a.pods[0]}) }},
		{"entry left behind", func(ix *Index) { ix.services.set(k, &Entry{}) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ix, m := New(), newModel()
			if err := m.compare(ix, a); err != nil {
				t.Fatalf("empty index and model: %v", err)
			}
			tt.change(ix)
			if err := m.compare(ix, a); err == nil {
				t.Error("no difference was found")
			}
		})
	}
}

// TestPodDNSStays asserts that equal DNS settings of pods share one record, by which search lists are cached.
func TestPodDNSStays(t *testing.T) {
	ix := New()
	dnsOf := func(policy string, ending bool) *PodDNS {
		p := webPod()
		p.DNS, p.Ending = &PodDNS{Policy: policy}, ending
		ix.PutPod(p)
		at := ix.PodsByIP(p.IPs[0])
		if len(at) != 1 || at[0].DNS == nil || at[0].DNS.Policy != policy || at[0].Ending != ending {
			t.Fatalf("pods %+v", at)
		}
		return at[0].DNS
	}
	first := dnsOf("None", false)
	if dnsOf("None", true) != first {
		t.Error("a pod with equal settings has a copy of them")
	}
	if dnsOf("Default", true) == first {
		t.Error("a pod with other settings shares them")
	}
}
