package rules

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/netns"
)

func TestMatched(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	if got, err := Matched(t.Context(), "nodelocaldns"); got != nil || err != nil {
		t.Errorf("without a table: %v, %v", got, err)
	}
	table := NewNFTables(Config{Interface: "nodelocaldns", Addresses: []netip.Addr{four, six}, Port: 53, Fallback: []netip.Addr{netip.MustParseAddr("10.96.0.11")}})
	kit.Must(t, table.Apply())
	got, err := Matched(t.Context(), "nodelocaldns")
	kit.Must(t, err)
	if own := got[ChainNode]; !slices.Contains(own, four) || !slices.Contains(own, six) {
		t.Errorf("chain %s: %v", ChainNode, own)
	}
	if with := got[ChainFallback]; !slices.Contains(with, four) || slices.Contains(with, six) {
		t.Errorf("chain %s: %v", ChainFallback, with)
	}
	if _, ok := got[ChainPods]; !ok {
		t.Errorf("no chain %s", ChainPods)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Matched(ended, "nodelocaldns"); err == nil {
		t.Error("no error after the end of the context")
	}
	kit.Must(t, table.Remove())
	if got, err := Matched(t.Context(), "nodelocaldns"); got != nil || err != nil {
		t.Errorf("after the removal: %v, %v", got, err)
	}
}
