package firewall

import (
	"testing"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// TestXtMatch reads the matches that iptables before 1.8.8 leaves in rules of nftables.
func TestXtMatch(t *testing.T) {
	every := [2]uint16{0, 0xffff}
	state := func(mask, inverted uint16) *xt.ConntrackMtinfo3 {
		var info xt.ConntrackMtinfo3
		info.MatchFlags, info.InvertFlags, info.StateMask = uint16(xt.ConntrackState), inverted, mask
		return &info
	}
	for _, c := range []struct {
		name string
		info xt.InfoAny
		want match
	}{
		{"a comment", new(xt.Comment), always},
		{"the port over UDP", &xt.Udp{SrcPorts: every, DstPorts: [2]uint16{53, 53}}, always},
		{"the port over TCP", &xt.Tcp{SrcPorts: every, DstPorts: [2]uint16{50, 60}}, always},
		{"another port", &xt.Udp{SrcPorts: every, DstPorts: [2]uint16{67, 68}}, never},
		{"all but a port", &xt.Udp{SrcPorts: every, DstPorts: [2]uint16{67, 68}, InvFlags: xt.UdpInvDestPorts}, maybe},
		{"a source port", &xt.Udp{SrcPorts: [2]uint16{53, 53}, DstPorts: every}, maybe},
		{"flags of TCP", &xt.Tcp{SrcPorts: every, DstPorts: every, FlagsMask: 2}, maybe},
		{"states that no query has", state(1|2|4, 0), never},
		{"new packets", state(8, 0), maybe},
		{"untracked packets", state(xtStateUntracked, 0), maybe},
		{"packets that are not established", state(2, uint16(xt.ConntrackState)), maybe},
		{"another match", new(xt.Unknown), maybe},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, p := range queries {
				if got := p.xtMatch(&expr.Match{Info: c.info}); got != c.want {
					t.Errorf("%v: %d, want %d", p, got, c.want)
				}
			}
		})
	}
}
