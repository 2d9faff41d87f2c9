package searchlist

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"
)

func TestNew(t *testing.T) {
	one := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
	p := New(one)
	if p == nil || p.ID == 0 || !slices.Equal(p.Suffixes, one) || p.First() != one[0] {
		t.Fatalf("got %+v", p)
	}
	if again := New(slices.Clone(one)); again != p {
		t.Errorf("the same list is %d and %d", p.ID, again.ID)
	}
	seen := map[uint32]string{p.ID: fmt.Sprint(one)}
	for _, other := range [][]string{
		one[:2], one[:1], one[1:], {one[0], one[2], one[1]}, {"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", "cluster.local."},
	} {
		p := New(other)
		if was, ok := seen[p.ID]; ok {
			t.Errorf("%v has ID %d, as %s", other, p.ID, was)
		}
		seen[p.ID] = fmt.Sprint(other)
	}
	one[0] = "changed."
	if p.First() != "shop.svc.cluster.local." {
		t.Error("the list shares memory with the argument")
	}
	for _, none := range [][]string{
		nil, {}, {"a..b."}, {strings.Repeat("a", 64) + "."}, {strings.Repeat("a.", 128)},
		{"."}, // the first candidate is the bare name
	} {
		if p := New(none); p != nil {
			t.Errorf("%q is %+v", none, p)
		}
	}
}

// TestNewConcurrently asserts that concurrent calls of New return one List for equal suffixes.
func TestNewConcurrently(t *testing.T) {
	var wait sync.WaitGroup
	const lists = 50
	found := make([][lists]*List, 4)
	for i := range found {
		wait.Go(func() {
			for _, n := range rand.Perm(lists) {
				found[i][n] = New([]string{fmt.Sprintf("concurrent%d.test.", n)})
			}
		})
	}
	wait.Wait()
	for i := range found {
		for n, p := range found[i] {
			if p != found[0][n] || p.First() != fmt.Sprintf("concurrent%d.test.", n) {
				t.Errorf("list %d is %+v and %+v", n, p, found[0][n])
			}
		}
	}
}

// TestManyLists asserts that the size of the registry is bounded, and that IDs are not reused.
func TestManyLists(t *testing.T) {
	t.Cleanup(func() {
		registry.mu.Lock()
		defer registry.mu.Unlock()
		clear(registry.byText)
	})
	seen := map[uint32]bool{}
	first := New([]string{"many.test."})
	for n := range maxLists + 10 {
		p := New([]string{fmt.Sprintf("n%d.many.test.", n)})
		if seen[p.ID] || p.ID == first.ID {
			t.Fatalf("two lists with ID %d", p.ID)
		}
		seen[p.ID] = true
		if len(registry.byText) > maxLists {
			t.Fatalf("%d lists in the registry", len(registry.byText))
		}
	}
	if again := New([]string{"many.test."}); again.ID == 0 || again.First() != first.First() || again.ID != first.ID && seen[again.ID] {
		t.Errorf("got %+v, before %+v", again, first)
	}
}

func TestBase(t *testing.T) {
	p := New([]string{"shop.svc.cluster.local.", "cluster.local."})
	for name, want := range map[string]string{
		"www.shop.svc.cluster.local.":             "www.",
		"www.example.org.shop.svc.cluster.local.": "www.example.org.",
		"wWw.SHOP.Svc.cluster.locaL.":             "wWw.",
		"shop.svc.cluster.local.":                 "",
		".shop.svc.cluster.local.":                "",
		"xshop.svc.cluster.local.":                "",
		"a.xshop.svc.cluster.local.":              "",
		"www.svc.cluster.local.":                  "",
		"www.cluster.local.":                      "",
		"www.shop.svc.cluster.local.org.":         "",
		"local.":                                  "",
		".":                                       "",
		"":                                        "",
		`a\.shop.svc.cluster.local.`:              "",
		`b.a\.shop.svc.cluster.local.`:            "",
		`a\\.shop.svc.cluster.local.`:             `a\\.`,
		`a\\\.shop.svc.cluster.local.`:            "",
		`a\.b.shop.svc.cluster.local.`:            `a\.b.`,
		`\046.shop.svc.cluster.local.`:            `\046.`,
		"*.shop.svc.cluster.local.":               "*.",
	} {
		if got := p.Base(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// labels are the labels of random names: those of suffixes, and some with bytes like a length or a dot.
var labels = []string{"shop", "svc", "cluster", "local", "a", "xshop", "\x03svc", "\x04shop\x03svc", "a.shop", "Shop", `\`, "\x00", ".", "local\x00"}

// TestExpands compares Expands, Base, and package dns for random names.
func TestExpands(t *testing.T) {
	property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 2))
		lists := []*List{
			New([]string{"shop.svc.cluster.local."}), New([]string{"local."}), New([]string{"a.a."}), New([]string{`a\.shop.svc.`}),
		}
		below := 0
		for range 200_000 {
			var wire []byte
			for range random.IntN(7) {
				l := labels[random.IntN(len(labels))]
				wire = append(append(wire, byte(len(l))), l...)
			}
			if random.IntN(2) == 0 {
				wire = append(wire, "\x04shop\x03svc\x07cluster\x05local"...)
			}
			name, _, err := dns.UnpackDomainName(append(wire, 0), 0)
			if err != nil {
				t.Fatal(err)
			}
			lower := strings.ToLower(string(append(wire, 0)))
			for _, p := range lists {
				base := p.Base(name)
				want := dns.IsSubDomain(p.First(), name) && dns.CountLabel(name) > dns.CountLabel(p.First())
				if got := p.Expands([]byte(lower + "\x00\x01rest")); got != want || (base != "") != want {
					t.Fatalf("%s below %s: %t, base %q, want %t", name, p.First(), got, base, want)
				}
				if base != "" && base+name[len(base):] != name {
					t.Fatalf("%s: base %q", name, base)
				}
				if want {
					below++
				}
			}
		}
		if below < 10_000 && property.Fixed() {
			t.Errorf("only %d names below the first suffix", below)
		}
		p := lists[0]
		name := []byte("\x03www\x04shop\x03svc\x07cluster\x05local\x00")
		if n := testing.AllocsPerRun(100, func() { p.Expands(name) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

func FuzzBase(f *testing.F) {
	for _, name := range []string{"www.shop.svc.cluster.local.", `a\.shop.svc.cluster.local.`, ".", `\`, `\046shop.svc.cluster.local.`, "0\x88."} {
		f.Add(name)
	}
	p := New([]string{"shop.svc.cluster.local.", "cluster.local."})
	f.Fuzz(func(t *testing.T, name string) {
		base := p.Base(name)
		var packed [256]byte
		n, err := dns.PackDomainName(name, packed[:], 0, nil, false)
		if err != nil || !dns.IsFqdn(name) {
			return // not a valid name
		}
		lower := packed[:n]
		for i, c := range lower { // strings.ToLower changes bytes that are not of UTF-8; the length of a label is at most 63, less than 'A'
			if 'A' <= c && c <= 'Z' {
				lower[i] = c - 'A' + 'a'
			}
		}
		if p.Expands(lower) != (base != "") {
			t.Errorf("%q: base %q, in wire form %q", name, base, lower)
		}
		if base != "" && !strings.EqualFold(base+p.First(), name) {
			t.Errorf("%q: base %q", name, base)
		}
	})
}
