package nft

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestRequest reads a list that the kernel sends in parts, and the errors of requests.
func TestRequest(t *testing.T) {
	netns.Enter(t)
	const chains = 2000
	rules := []string{"add table inet t"}
	for i := range chains {
		rules = append(rules, fmt.Sprintf("add chain inet t chain%d", i))
	}
	netns.Run(t, "nft", "-f", kit.File(t, "rules", strings.Join(rules, "\n")))
	names := map[string]bool{}
	read := func(family byte, a *netlink.AttributeDecoder) error {
		for a.Next() {
			if a.Type() == unix.NFTA_CHAIN_NAME && family == unix.NFPROTO_INET {
				names[a.String()] = true
			}
		}
		return nil
	}
	ctx := context.Background()
	list := func(ctx context.Context, read func(byte, *netlink.AttributeDecoder) error) error {
		return Request(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, netlink.Dump, unix.NFPROTO_INET, nil, read)
	}
	if err := list(ctx, read); err != nil || len(names) != chains {
		t.Errorf("%d of %d chains, error %v", len(names), chains, err)
	}
	before, err := Generation()
	kit.Must(t, err)
	netns.Run(t, "nft", "add table inet u")
	if after, err := Generation(); err != nil || after == before {
		t.Errorf("generation %d after a change, %d before, error %v", after, before, err)
	}
	stop := errors.New("read enough")
	if err := list(ctx, func(byte, *netlink.AttributeDecoder) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the error of read: %v", err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	if err := list(ended, read); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	missing, err := netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_TABLE_NAME, Data: []byte("none\x00")}})
	kit.Must(t, err)
	for name, flags := range map[string]netlink.HeaderFlags{"a reply": 0, "an acknowledgement": netlink.Acknowledge} {
		err := Request(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETTABLE, flags, unix.NFPROTO_INET, missing, nil)
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("a missing table, requested with %s: %v", name, err)
		}
	}
}
