package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/fxamacker/cbor/v2"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
)

var testHeader = Header{Cluster: "00000000-0000-4000-8000-000000000001", Server: "https://10.96.0.1:443 ab", Options: "topology", Time: time.UnixMilli(1_790_000_000_123)}

// TestRoundTrip writes random records, and reads them into another index.
func TestRoundTrip(t *testing.T) {
	property.Seeds(t, 1, 100, func(t *testing.T, seed uint64) {
		ix := randomIndex(rand.New(rand.NewPCG(seed, 1)))
		data := written(t, testHeader, ix)
		h, c, err := Read(bytes.NewReader(data), int64(len(data)))
		kit.Must(t, err)
		if !h.Time.Equal(testHeader.Time) || h.Cluster != testHeader.Cluster || h.Server != testHeader.Server || h.Options != testHeader.Options {
			t.Errorf("header %+v, want %+v", h, testHeader)
		}
		restored := index.New()
		restored.Restore(c)
		if got, want := dump(restored), dump(ix); got != want {
			t.Errorf("read\n%s\nwritten\n%s", got, want)
		}
	})
}

// TestInvalid reads files that are not snapshots, or not whole ones.
func TestInvalid(t *testing.T) {
	data := written(t, testHeader, randomIndex(rand.New(rand.NewPCG(7, 1))))
	encoded := func(items ...any) []byte {
		var b []byte
		for _, item := range items {
			more, err := cbor.Marshal(item)
			kit.Must(t, err)
			b = append(b, more...)
		}
		sum := sha256.Sum256(b)
		return append(b, sum[:]...)
	}
	record := func(k kind, record any) recordItem {
		b, err := cbor.Marshal(record)
		kit.Must(t, err)
		return recordItem{Kind: k, Record: b}
	}
	header := headerItem{Magic: magic, Version: Version}
	for _, tc := range []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, ErrFormat},
		{"short", []byte("nearside"), ErrFormat},
		{"another file", []byte(strings.Repeat("127.0.0.1 localhost\n", 10)), ErrFormat},
		{"another magic", encoded(headerItem{Magic: "other", Version: Version}), ErrFormat},
		{"a newer version", encoded(headerItem{Magic: magic, Version: Version + 1}), ErrVersion},
		{"without the last byte", data[:len(data)-1], ErrChecksum},
		{"half", data[:len(data)/2], ErrChecksum},
		{"one byte more", append(slices.Clone(data), 0), ErrChecksum},
		{"an unknown kind", encoded(header, record(99, 1)), ErrCorrupt},
		{"a record of another kind", encoded(header, record(sliceKind, "text")), ErrCorrupt},
		{"an address of 5 bytes", encoded(header, record(serviceKind, serviceItem{IPs: [][]byte{{1, 2, 3, 4, 5}}})), ErrCorrupt},
		{"an external address of 5 bytes", encoded(header, record(serviceKind, serviceItem{External: &externalItem{IPs: [][]byte{{1, 2, 3, 4, 5}}}})), ErrCorrupt},
		{"addresses of 5 bytes", encoded(header, record(sliceKind, sliceItem{Size: 5, Addrs: make([]byte, 5)})), ErrCorrupt},
		{"addresses without a size", encoded(header, record(sliceKind, sliceItem{})), ErrCorrupt},
		{"a part of an address", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 6)})), ErrCorrupt},
		{"too few names", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 8), Names: []string{"a"}})), ErrCorrupt},
		{"an unknown zone", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 4), Zones: []byte{1}})), ErrCorrupt},
		{"an unknown node", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 4), Nodes: []byte{1}})), ErrCorrupt},
		{"an unknown cluster", encoded(header, record(sliceKind, sliceItem{Size: 4, Cluster: 1})), ErrCorrupt},
		{"too few zones", encoded(header, record(sliceKind, sliceItem{Size: 4, Symbols: []string{"a"}, Addrs: make([]byte, 8), Zones: []byte{1}})), ErrCorrupt},
		{"half of a number", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 4), Zones: []byte{0x80}})), ErrCorrupt},
		{"unknown hints", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 4), Hints: []byte{1}})), ErrCorrupt},
		{"hints of an unknown zone", encoded(header, record(sliceKind, sliceItem{Size: 4, HintSets: []hintsItem{{Zones: []uint32{1}}}})), ErrCorrupt},
		{"hints of an unknown node", encoded(header, record(sliceKind, sliceItem{Size: 4, HintSets: []hintsItem{{Nodes: []uint32{1}}}})), ErrCorrupt},
		{"more hints than sets", encoded(header, record(sliceKind, sliceItem{Size: 4, Addrs: make([]byte, 4), Hints: []byte{2}, HintSets: []hintsItem{{}}})), ErrCorrupt},
		{"a label without a value", encoded(header, record(nodeKind, nodeItem{Labels: []string{"a"}})), ErrCorrupt},
		{"an invalid range", encoded(header, record(nodeKind, nodeItem{CIDRs: [][]byte{{10, 0, 0, 0, 99}}})), ErrCorrupt},
		{"a pod with an invalid address", encoded(header, record(podKind, podItem{IPs: [][]byte{{1}}})), ErrCorrupt},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, c, err := Read(bytes.NewReader(tc.data), int64(len(tc.data)))
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if c.Services != nil {
				t.Error("it has records")
			}
		})
	}
	t.Run("empty lists", func(t *testing.T) {
		data := encoded(header, record(sliceKind, sliceItem{
			Size: 4, Service: "web", Addrs: make([]byte, 8), Names: []string{}, Zones: []byte{}, Nodes: []byte{}, Hints: []byte{},
		}))
		if _, c, err := Read(bytes.NewReader(data), int64(len(data))); err != nil || len(slices.Collect(c.Slices)) != 1 {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a huge length", func(t *testing.T) {
		data := append([]byte("\x5b\x00\x00\x00\x7f\xff\xff\xff\xff"), make([]byte, 100)...) // bytes, of which the length is read first
		if _, _, err := Read(bytes.NewReader(data), int64(len(data))); !errors.Is(err, ErrFormat) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a changed byte", func(t *testing.T) {
		for at := range data {
			changed := slices.Clone(data)
			changed[at] ^= 0x40
			if _, _, err := Read(bytes.NewReader(changed), int64(len(changed))); err == nil {
				t.Fatalf("no error after a change of byte %d", at)
			}
		}
	})
}

// TestExtremes writes and reads objects that only a user with bad intentions makes.
func TestExtremes(t *testing.T) {
	many := make([]netip.Addr, 300_000)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	labels := map[string]string{}
	for i := range 200_000 {
		labels[fmt.Sprint(i)] = ""
	}
	ix := index.New()
	ix.PutService(&index.Service{Namespace: "shop", Name: "many", External: &index.External{IPs: many}})
	ix.PutSlice(&index.Slice{Namespace: "shop", Name: "odd", Service: "many", Endpoints: []index.Endpoint{{Addr: many[0], Zone: index.NewSymbol("\xff\xfe"), Name: "\xff"}}})
	ix.PutPod(&index.Pod{Namespace: "shop", Name: "pod", IPs: many[:1], Labels: index.NewPodLabels(labels)})
	data := written(t, testHeader, ix)
	_, c, err := Read(bytes.NewReader(data), int64(len(data)))
	kit.Must(t, err)
	restored := index.New()
	restored.Restore(c)
	if dump(restored) != dump(ix) {
		t.Error("the records differ")
	}
}

// FuzzRead reads files with a valid checksum, and restores what they contain.
func FuzzRead(f *testing.F) {
	for seed := range uint64(4) {
		data := written(f, testHeader, randomIndex(rand.New(rand.NewPCG(seed, 1))))
		f.Add(data[:len(data)-sha256.Size])
	}
	empty, err := cbor.Marshal(sliceItem{Size: 4, Service: "web", Addrs: make([]byte, 4), Names: []string{}, Zones: []byte{}, Nodes: []byte{}, Hints: []byte{}})
	kit.Must(f, err)
	header, err := cbor.Marshal(headerItem{Magic: magic, Version: Version})
	kit.Must(f, err)
	item, err := cbor.Marshal(recordItem{Kind: sliceKind, Record: empty})
	kit.Must(f, err)
	f.Add(append(header, item...))
	f.Fuzz(func(t *testing.T, body []byte) {
		sum := sha256.Sum256(body)
		data := append(slices.Clone(body), sum[:]...)
		_, c, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		ix := index.New()
		ix.Restore(c)
		again := written(t, testHeader, ix)
		_, c, err = Read(bytes.NewReader(again), int64(len(again)))
		if err != nil {
			t.Fatalf("it cannot be read again: %v", err)
		}
		other := index.New()
		other.Restore(c)
		if got, want := dump(other), dump(ix); got != want {
			t.Errorf("read again\n%s\nread\n%s", got, want)
		}
	})
}

func written(t testing.TB, h Header, ix *index.Index) []byte {
	t.Helper()
	var b bytes.Buffer
	kit.Must(t, Write(&b, h, ix.Contents()))
	return b.Bytes()
}

// dump returns all records as text, in order.
func dump(ix *index.Index) string {
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	c := ix.Contents()
	for s := range c.Services {
		add("service %s", serviceText(s))
	}
	for s := range c.Imports {
		add("import %s", serviceText(s))
	}
	for s := range c.Slices {
		line := fmt.Sprintf("slice %s/%s %q %q %s %v", s.Namespace, s.Name, s.Service, s.Import, s.Cluster, s.Ports)
		for e := range s.All() {
			line += fmt.Sprintf(" %s,%s,%s,%s", e.Addr, e.Name, e.Zone, e.Node)
			if e.Hints != nil {
				line += fmt.Sprintf(",%v", *e.Hints)
			}
		}
		add("%s", line)
	}
	for name := range c.Namespaces {
		add("namespace %s", name)
	}
	for p := range c.Pods {
		add("pod %s/%s %v %v %s %t %t %+v", p.Namespace, p.Name, p.IPs, maps.Collect(p.Labels.All()), p.Node, p.HostNetwork, p.Ending, p.DNS)
	}
	for n := range c.Nodes {
		add("node %s %d %v %v %t", n.Name, n.UID, slices.Collect(n.AllLabels()), n.CIDRs, n.CIDRs == nil)
	}
	slices.Sort(lines)
	return strings.Join(append(lines, "cluster "+c.ClusterID.String()), "\n")
}

func serviceText(s *index.Service) string {
	text := fmt.Sprintf("%s/%s %d %d %v %s %v", s.Namespace, s.Name, s.Kind, s.Wait, s.IPs, s.Target, s.Ports)
	if s.Topology != nil {
		text += fmt.Sprintf(" %+v %t", *s.Topology, s.Topology.Keys == nil)
	}
	if s.External != nil {
		text += fmt.Sprintf(" %+v", *s.External)
	}
	return text
}

// randomIndex returns an index with records that have all fields.
func randomIndex(r *rand.Rand) *index.Index {
	ix := index.New()
	word := func(kind string, n int) string { return fmt.Sprintf("%s-%d", kind, r.IntN(n)) }
	symbol := func(kind string, n int) index.Symbol {
		if r.IntN(3) == 0 {
			return index.Symbol{}
		}
		return index.NewSymbol(word(kind, n))
	}
	symbols := func(kind string) (all []index.Symbol) {
		for range r.IntN(3) {
			all = append(all, index.NewSymbol(word(kind, 5)))
		}
		return all
	}
	addr := func() netip.Addr {
		if r.IntN(3) == 0 {
			return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 14: byte(r.IntN(4)), 15: byte(r.IntN(256))})
		}
		return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(4)), byte(r.IntN(256))})
	}
	addrs := func() (all []netip.Addr) {
		for range r.IntN(3) {
			all = append(all, addr())
		}
		return all
	}
	ports := func() (all []index.Port) {
		for range r.IntN(3) {
			all = append(all, index.Port{Name: symbol("port", 3), Protocol: index.NewSymbol("tcp"), Number: int32(r.IntN(3)) - 1})
		}
		return all
	}
	service := func() *index.Service {
		s := &index.Service{
			Namespace: word("ns", 3), Name: word("svc", 8), Kind: index.Kind(r.IntN(3)), Wait: uint16(r.IntN(3) * 1000), IPs: addrs(), Ports: ports(),
		}
		if s.Kind == index.ExternalName {
			s.Target = "www.example.org."
		}
		switch r.IntN(3) {
		case 0:
			s.Topology = &index.Topology{Keys: symbols("key"), Local: r.IntN(2) == 0, Auto: r.IntN(2) == 0, Distribution: index.Distribution(r.IntN(3))}
		case 1:
			s.Topology = &index.Topology{Keys: []index.Symbol{}}
		}
		if r.IntN(3) == 0 {
			s.External = &index.External{IPs: addrs(), Hosts: []string{"lb.example.org."}}
		}
		return s
	}
	for range r.IntN(20) {
		switch r.IntN(8) {
		case 0, 1:
			ix.PutService(service())
		case 2:
			ix.PutImport(service())
		case 3, 4:
			s := &index.Slice{Namespace: word("ns", 3), Name: word("slice", 8), Cluster: symbol("cluster", 3), Ports: ports()}
			if s.Service = word("svc", 8); r.IntN(3) == 0 {
				s.Service, s.Import = "", word("svc", 8)
			} else if r.IntN(3) == 0 {
				s.Import = word("svc", 8)
			}
			shared := &index.Hints{Zones: symbols("zone")}
			named, placed, hinted := r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
			for range r.IntN(6) {
				e := index.Endpoint{Addr: addr()}
				if named && r.IntN(2) == 0 {
					e.Name = word("db", 9)
				}
				if placed {
					e.Zone, e.Node = symbol("zone", 3), symbol("node", 9)
				}
				if hinted && r.IntN(2) == 0 {
					e.Hints = shared
				} else if hinted && r.IntN(2) == 0 {
					e.Hints = &index.Hints{Nodes: symbols("node"), Zones: symbols("zone")}
				}
				s.Endpoints = append(s.Endpoints, e)
			}
			ix.PutSlice(s)
		case 5:
			p := &index.Pod{Namespace: word("ns", 3), Name: word("pod", 8), IPs: append(addrs(), addr()), Node: symbol("node", 9), HostNetwork: r.IntN(2) == 0, Ending: r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				p.Labels = index.NewPodLabels(map[string]string{"app": word("app", 3)})
			}
			if r.IntN(2) == 0 {
				p.DNS = &index.PodDNS{Policy: "None", Searches: []string{"example.org"}}
			}
			ix.PutPod(p)
		case 6:
			n := &index.Node{Name: index.NewSymbol(word("node", 9)), UID: index.UID(r.Uint64()), Labels: []index.Label{{Key: index.NewSymbol("zone"), Value: symbol("zone", 3)}}}
			if r.IntN(2) == 0 {
				n.CIDRs = []netip.Prefix{netip.PrefixFrom(addr(), 24)}
			} else if r.IntN(2) == 0 {
				n.CIDRs = []netip.Prefix{}
			}
			ix.PutNode(n)
		case 7:
			ix.PutNamespace(word("ns", 3))
		}
	}
	if r.IntN(2) == 0 {
		ix.SetClusterID(index.NewSymbol("east"))
	}
	return ix
}
