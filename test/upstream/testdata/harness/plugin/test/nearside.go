package test

import (
	"github.com/coredns/coredns/plugin/pkg/nearside"

	"github.com/miekg/dns"
)

// SortAndCheck is CoreDNS's function, which records each answer.
func SortAndCheck(resp *dns.Msg, tc Case) error {
	return nearside.Answer(tc.Qname+" "+dns.TypeToString[tc.Qtype], sortAndCheck(resp, tc))
}
