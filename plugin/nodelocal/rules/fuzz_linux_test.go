package rules

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
)

// FuzzLegacy parses any output of "iptables -S": rules of node-local-dns, and kube-proxy's chain.
func FuzzLegacy(f *testing.F) {
	f.Add("-P OUTPUT ACCEPT\n-A OUTPUT -d 169.254.20.10/32 -p udp -m comment --comment \"NodeLocal DNS Cache: skip conntrack\" -j NOTRACK\n")
	f.Add("-N KUBE-SERVICES\n-A KUBE-SERVICES ! -s 10.244.0.0/16 -d 10.96.0.10/32 -m comment --comment kube-dns -j KUBE-SVC-A\n")
	f.Add("-A OUTPUT -s fd00::a/128 --comment \"NodeLocal \\\"DNS Cache\" -d ::/0\n-A\n\"")
	unquoted := strings.NewReplacer(`"`, "", `\`, "")
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range (Legacy{Family: "ip"}).predecessors("raw", text) {
			if !strings.HasPrefix(r.Comment, predecessorComment) || !slices.Contains(r.spec, r.Comment) {
				t.Errorf("rule %v with %q", r, r.spec)
			}
		}
		var p KubeProxy
		p.readLegacy(text)
		if len(p.Services) > 0 && !strings.Contains(unquoted.Replace(text), proxyChain) {
			t.Errorf("addresses %v without a chain", p.Services)
		}
		for line := range strings.Lines(text) {
			if words := SplitWords(line); len(strings.Join(words, "")) > len(line) {
				t.Errorf("words %q of %q", words, line)
			}
		}
	})
}

// FuzzExpression reads any attribute of an expression in a listing of rules, and any user data, which may be of another program.
func FuzzExpression(f *testing.F) {
	comment := xt.Comment("NodeLocal DNS Cache: skip conntrack")
	for _, e := range []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{169, 254, 20, 10}},
		&expr.Match{Name: "comment", Info: &comment},
	} {
		attributes, err := expr.Marshal(byte(nftables.TableFamilyIPv4), e)
		kit.Must(f, err)
		if got := readExpression(nftables.TableFamilyIPv4, attributes, predecessorExpression); reflect.TypeOf(got) != reflect.TypeOf(e) {
			f.Fatalf("read %#v, want %#v", got, e)
		}
		f.Add(attributes, []byte{0, 3, 'a', 'b', 0})
		f.Add(attributes[:len(attributes)-4], []byte{1, 0, 0, 9, 'a'})
	}
	f.Fuzz(func(t *testing.T, attributes, userData []byte) {
		for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6, nftables.TableFamilyINet} {
			e := readExpression(family, attributes, predecessorExpression)
			rule := nftables.Rule{Exprs: []expr.Any{e}, UserData: userData}
			if comment := commentOf(rule); len(comment) > len(attributes)+len(userData) {
				t.Errorf("comment %q", comment)
			}
			network := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Len: 4}
			for _, a := range matchedAddresses([]expr.Any{network, e}) {
				if a == (netip.Addr{}) {
					t.Error("an address without a value")
				}
			}
		}
	})
}
