package link

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/netns"
)

func TestList(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	addrs := []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}
	if _, err := New("nodelocaldns").Ensure(addrs, true); err != nil {
		t.Fatal(err)
	}
	find := func() (Link, []Link) {
		t.Helper()
		links, err := List()
		kit.Must(t, err)
		i := slices.IndexFunc(links, func(l Link) bool { return l.Name == "nodelocaldns" })
		if i < 0 {
			t.Fatalf("no interface among %v", links)
		}
		return links[i], links
	}
	l, links := find()
	if l.Foreign(links) != "" || !l.Up {
		t.Errorf("got %+v, want a dummy or bridge that is up", l)
	}
	for _, a := range addrs {
		if assigned, ok := l.Address(a); !ok || !assigned.Prefix.IsSingleIP() || assigned.Tentative {
			t.Errorf("%s: got %+v, %t", a, assigned, ok)
		}
	}
	if _, ok := l.Address(netip.MustParseAddr("169.254.20.11")); ok {
		t.Error("it has an address that was not added")
	}
}

func TestForeign(t *testing.T) {
	port := Link{Name: "eth1", Index: 3, Master: 2}
	for _, c := range []struct{ kind, want string }{
		{"dummy", ""}, {"bridge", "a bridge with the port eth1"}, {"veth", "a veth, not a dummy or bridge"},
	} {
		if got := (Link{Kind: c.kind, Index: 2}).Foreign([]Link{port}); got != c.want {
			t.Errorf("%s: got %q, want %q", c.kind, got, c.want)
		}
	}
	if got := (Link{Kind: "bridge", Index: 4}).Foreign([]Link{port}); got != "" {
		t.Errorf("a bridge without ports: %q", got)
	}
}
