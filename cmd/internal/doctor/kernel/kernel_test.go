//go:build linux

package kernel

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestLegacyRead(t *testing.T) {
	const filter = `-P INPUT DROP
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N KUBE-FIREWALL
-A INPUT -j KUBE-FIREWALL
-A INPUT -m comment --comment "-N KUBE-SERVICES" -j ACCEPT
`
	var l Legacy
	if l.read(filter); l.Services {
		t.Error("a comment that names KUBE-SERVICES is taken for the chain")
	}
	if l.read("-P OUTPUT DROP\n-N KUBE-SERVICES\n"); !l.Services {
		t.Error("the chain KUBE-SERVICES is not seen")
	}
}

func TestWithin(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	never := make(chan struct{})
	defer close(never)
	_, err := within(ctx, "wait", func() (int, error) { <-never; return 1, nil })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "wait: ") {
		t.Errorf("got %v", err)
	}
	got, err := within(context.Background(), "count", func() (int, error) { return 7, nil })
	if got != 7 || err != nil {
		t.Errorf("got %d, %v", got, err)
	}
}

func TestOwn(t *testing.T) {
	for _, c := range []struct {
		table Table
		iface string
		ok    bool
	}{
		{Table{"inet", "nearside-nodelocaldns"}, "nodelocaldns", true},
		{Table{"ip", "nearside-nodelocaldns"}, "nodelocaldns", false},
		{Table{"inet", "filter"}, "filter", false},
	} {
		t.Run(c.table.String(), func(t *testing.T) {
			if iface, ok := c.table.Own(); iface != c.iface || ok != c.ok {
				t.Errorf("got %q, %t; want %q, %t", iface, ok, c.iface, c.ok)
			}
		})
	}
	if got := OwnTable("nodelocaldns"); got != (Table{"inet", "nearside-nodelocaldns"}) {
		t.Errorf("got %v", got)
	}
}

func TestHolds(t *testing.T) {
	l := Link{Name: "lo", Addresses: []Address{{Prefix: netip.MustParsePrefix("169.254.20.10/32")}}}
	if _, ok := l.Holds(netip.MustParseAddr("169.254.20.10")); !ok || !l.Loopback() {
		t.Error("lo does not hold its address")
	}
	if _, ok := l.Holds(netip.MustParseAddr("169.254.20.11")); ok {
		t.Error("lo holds an address that it has not")
	}
}
