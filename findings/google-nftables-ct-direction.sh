#!/usr/bin/env bash
# google/nftables v0.3.0: the field Direction of expr.Ct has no effect on little-endian machines, and a chain with a rule
# "ct reply ..." or "ct original ..." can't be read at all.
#
# One expects Direction 1 to match the reply direction, or an error. The library writes the attribute NFTA_CT_DIRECTION in four
# bytes, big-endian; the kernel has one byte for it and reads the first, which is 0: the rule is stored, without an error, for the
# original direction, so that it matches other packets. When rules are read, the kernel sends one byte where the library expects four:
# GetRules returns an error and no rule of the chain, neither of the one that the library has just added nor of other rules in a chain
# that nft wrote. A program that inspects the rules of others misses whole chains.
#
# Needs Go, nft (Debian: nftables), iproute2 and root. It works in a network namespace of its own, and exits with 0 while the library
# behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/google/nftables v0.3.0
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"log"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

func main() {
	c, err := nftables.New()
	if err != nil {
		log.Fatal(err)
	}
	added := &nftables.Table{Family: nftables.TableFamilyINet, Name: "library"}
	c.AddTable(added)
	chain := c.AddChain(&nftables.Chain{Table: added, Name: "replies"})
	c.AddRule(&nftables.Rule{Table: added, Chain: chain, Exprs: []expr.Any{
		&expr.Ct{Key: expr.CtKeyPROTODST, Direction: 1, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 53}},
	}})
	fmt.Println("library: adds a rule with Direction 1, error:", c.Flush())
	for _, name := range []string{"library", "nft"} {
		rules, err := c.GetRules(&nftables.Table{Family: nftables.TableFamilyINet, Name: name}, &nftables.Chain{Name: "replies"})
		fmt.Printf("library: reads the chain of table %s: %d rules, error: %v\n", name, len(rules), err)
	}
}
GO
go mod tidy 2>tidy || { cat tidy; exit 1; }
go build -o library .
cat >rules <<'RULES'
table inet nft {
	chain replies {
		tcp dport 53 accept
		ct reply packets > 100 counter
	}
}
RULES
unshare --net bash -euo pipefail -c '
	nft -f rules
	./library
	printf "nft: "
	nft --debug=netlink list chain inet library replies | grep "ct load"
' | tee seen
echo "google/nftables $(go list -m -f '{{.Version}}' github.com/google/nftables), $(nft --version), Linux $(uname -r)"
grep -qx 'library: adds a rule with Direction 1, error: <nil>' seen
grep -q 'ct load proto_dst => reg 1 , dir original' seen
[[ $(grep -c '0 rules, error: netlink: attribute 3 is not a uint32; length: 1' seen) == 2 ]]
