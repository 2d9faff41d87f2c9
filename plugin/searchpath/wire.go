package searchpath

import (
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// ServeWire implements wirechain.Handler. Names under the suffix that are not search names are left to the plugin chain.
func (s *SearchPath) ServeWire(b *batch.Batch, q *wirechain.Request) {
	question, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	if err != nil || !s.grammar.contains(question) {
		s.PassWire(b, q)
		return
	}
	if name, kind := s.grammar.parse(question); kind == search && expand.ExpandableWire(q) {
		s.Expander.ServeWire(b, q, question, s.question(name))
		return
	}
	q.Pass(b, q, nil)
}
