#!/usr/bin/env bash
# miekg/dns v1.1.73: a message with a CAA or URI record that is unpacked and packed again has other data. Each backslash in the value
# of CAA, or in the target of URI, is lost, of two in a row the first: "a\\\\b" is "a\\b", "a\b", "ab" behind three such hops.
#
# One expects that unpacking and packing are inverse, as they are for TXT and HINFO, whose strings are escaped when they are unpacked.
# For these two types the bytes are taken as they are, but a backslash is an escape when they are packed. A forwarder or a cache that
# is made with the library, such as CoreDNS, changes the record on the way, and a signature over it (RRSIG) does not match any more.
#
# Needs Go. It exits with 0 while the library behaves so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
cd -- "$work"
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/miekg/dns v1.1.73
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"log"

	"github.com/miekg/dns"
)

func main() {
	text := `a\\\\b`
	for rrtype, head := range map[uint16]string{
		dns.TypeCAA: "\x00\x05issue", dns.TypeURI: "\x00\x01\x00\x01", dns.TypeTXT: string(rune(len(text))),
	} {
		b := append(make([]byte, 10), byte(len(head)+len(text)))
		b[1], b[2], b[4] = byte(rrtype>>8), byte(rrtype), dns.ClassINET
		b = append(append(b, head...), text...)
		for hop := range 4 {
			fmt.Printf("%s, %d hops: %s\n", dns.TypeToString[rrtype], hop, b[11+len(head):])
			rr, _, err := dns.UnpackRR(b, 0)
			if err != nil {
				log.Fatal(err)
			}
			buf := make([]byte, 100)
			end, err := dns.PackRR(rr, buf, 0, nil, false)
			if err != nil {
				log.Fatal(err)
			}
			b = buf[:end]
		}
	}
}
GO
go mod tidy 2>tidy || { cat tidy; exit 1; }
go run . | sort | tee seen
echo "miekg/dns $(go list -m -f '{{.Version}}' github.com/miekg/dns)"
for type in CAA URI; do
	grep -qxF "$type, 0 hops: a\\\\\\\\b" seen
	grep -qxF "$type, 1 hops: a\\\\b" seen
	grep -qxF "$type, 2 hops: a\\b" seen
	grep -qxF "$type, 3 hops: ab" seen
done
grep -qxF "TXT, 3 hops: a\\\\\\\\b" seen
