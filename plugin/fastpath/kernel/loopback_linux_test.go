//go:build amd64 || arm64

package kernel

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestLoopback has host programs that query over lo while the kernel tracks connections, except those to and from the node-local
// addresses, as with the rules of plugin nodelocal: they get the answer of the program.
func TestLoopback(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	shell := func(command string) {
		t.Helper()
		kit.Output(t, exec.Command("sh", "-ec", command))
	}
	shell(`ip link set lo up
ip address add 169.254.20.10/32 dev lo
ip -6 address add fd00::a/128 dev lo
ip address add 10.1.1.1/32 dev lo
ip route add 10.96.0.0/16 dev lo src 10.1.1.1`)
	b := newBed(t)
	b.must(web, address(t, web, nil))
	conn, err := net.ListenPacket("udp", listener4.String())
	kit.Must(t, err)
	kit.Run(t, &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetReply(r))
	})})
	attached, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: b.objects.NearsideAnswer, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Skipf("no tcx: %v", err)
	}
	t.Cleanup(func() { _ = attached.Close() })
	ask := func(what, address string) {
		t.Helper()
		before := b.Statistics().Answered
		reply, err := kit.Exchange("udp", address, new(dns.Msg).SetQuestion(web, dns.TypeA))
		switch {
		case err != nil:
			t.Errorf("%s, %s: %v", what, address, err)
		case b.Statistics().Answered-before != 1 || len(reply.Answer) != 1:
			t.Errorf("%s, %s: not answered by the program:\n%v", what, address, reply)
		}
	}
	ask("plain", listener4.String())
	ask("plain", listener6.String())
	shell(`nft -f - <<'RULES'
table inet raw {
	chain output {
		type filter hook output priority -300
		ip daddr 169.254.20.10 udp dport 53 notrack accept
		ip6 daddr fd00::a udp dport 53 notrack accept
	}
}
table inet filter {
	chain input {
		type filter hook input priority 0; policy drop
		ct state established,related,untracked accept
	}
}
RULES`)
	ask("untracked", listener4.String())
	ask("untracked", listener6.String())
}

// TestAddresses has packets that a socket would not receive: they pass.
func TestAddresses(t *testing.T) {
	b := newBed(t)
	b.must(web, address(t, web, nil))
	message := question(t, web, dns.TypeA, nil)
	mapped := &datagram{from: netip.MustParseAddrPort("[fd00::7]:40000"), to: listener6, message: message}
	frame := mapped.frame()
	to := listener4.Addr().As16()
	copy(frame[etherLen+24:], to[:])
	head := frame[len(frame)-8-len(message):]
	head[6], head[7] = 0, 0
	sum := uint64(17 + len(head))
	for addresses := frame[etherLen+8 : etherLen+40]; len(addresses) > 0; addresses = addresses[2:] {
		sum += uint64(addresses[0])<<8 | uint64(addresses[1])
	}
	check := ^folded(sum, head)
	head[6], head[7] = byte(check>>8), byte(check)
	if result, _ := b.run(frame); result != passedOn {
		t.Errorf("a mapped address: result %d", result)
	}
}
