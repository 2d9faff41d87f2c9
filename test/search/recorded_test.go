//go:build linux

package search

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/miekg/dns"
)

// optionSearch is the EDNS option that carries a search list.
const optionSearch = 65314

// query is a query that a server received or that left a pod.
type query struct {
	network, name, qtype string
	search               bool // with the option of a search list
}

func (q query) String() string {
	text := q.network + " " + q.name + " " + q.qtype
	if q.search {
		text += " with a search list"
	}
	return text
}

// newQuery unpacks a query, which must have one question.
func newQuery(network string, packed []byte) (query, error) {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return query{}, fmt.Errorf("query %x: %w", packed, err)
	}
	if len(m.Question) != 1 {
		return query{}, fmt.Errorf("query with %d questions", len(m.Question))
	}
	q := query{network: network, name: strings.ToLower(m.Question[0].Name), qtype: dns.TypeToString[m.Question[0].Qtype]}
	if opt := m.IsEdns0(); opt != nil {
		q.search = slices.ContainsFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() == optionSearch })
	}
	return q, nil
}

// recorded are the queries that a server has received.
type recorded struct {
	mu  sync.Mutex
	all []query
}

func (r *recorded) add(q query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, q)
}

// mark returns the number of recorded queries, for since.
func (r *recorded) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// since returns the queries after a mark for names with a prefix, which excludes queries of the servers' own.
func (r *recorded) since(mark int, name string) (found []query) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.all[mark:] {
		if strings.HasPrefix(q.name, strings.ToLower(name)) {
			found = append(found, q)
		}
	}
	return found
}
