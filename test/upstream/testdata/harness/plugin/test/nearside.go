package test

import (
	"github.com/miekg/dns"

	"github.com/coredns/coredns/plugin/pkg/nearside"
)

// SortAndCheck is CoreDNS's function, which records each answer.
func SortAndCheck(resp *dns.Msg, tc Case) error {
	return nearside.Answer(tc.Qname+" "+dns.TypeToString[tc.Qtype], sortAndCheck(resp, tc))
}
