//go:build linux

package topology

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// question is a question of a query.
type question struct{ name, qtype string }

// reply is a reply as dig prints it.
type reply kit.DigReply

// querier sends queries from a namespace to a server, by dig.
type querier struct {
	from    *netns.Namespace
	server  string
	options []string // of dig
}

// claims returns the option of dig for EDNS option 65313 with a node and, if it is not empty, a zone.
func claims(node, zone string) string {
	data := fmt.Sprintf("01%02x%x", len(node), node)
	if zone != "" {
		data += fmt.Sprintf("%02x%x", len(zone), zone)
	}
	return "+ednsopt=65313:" + data
}

// with returns the querier with further options of dig.
func (q querier) with(options ...string) querier {
	q.options = append(slices.Clone(q.options), options...)
	return q
}

func (q querier) String() string {
	name := q.from.Name[strings.LastIndexByte(q.from.Name, '-')+1:]
	return strings.TrimSpace(fmt.Sprintf("from %s: dig @%s %s", name, q.server, strings.Join(q.options, " ")))
}

// send runs one dig for all questions. It fails if a question has no reply, or if a reply has the option 65313, which no
// client may receive.
func (q querier) send(questions ...question) ([]reply, error) {
	args := append([]string{"@" + q.server, "+nocookie", "+tries=2", "+time=5"}, q.options...)
	for _, each := range questions {
		args = append(args, each.name, each.qtype)
	}
	out, err := q.from.Try("dig", args...)
	if err != nil {
		return nil, err
	}
	if strings.Contains(out, "OPT=65313") {
		return nil, fmt.Errorf("%v: the reply has the option 65313:\n%s", q, out)
	}
	var replies []reply
	for _, r := range kit.ParseDig(out) {
		replies = append(replies, reply(r))
	}
	if len(replies) != len(questions) {
		return nil, fmt.Errorf("%v: %d replies to %d questions:\n%s", q, len(replies), len(questions), out)
	}
	return replies, nil
}

// String returns the addresses or SRV targets of the answer section, sorted, and after a bar the addresses of the additional
// section. Without an answer, it returns the status.
func (r reply) String() string {
	if len(r.Answer) == 0 {
		soa := slices.ContainsFunc(r.Authority, func(rr kit.DigRecord) bool { return rr.Type == "SOA" })
		if r.Status == "NOERROR" && soa {
			return "NODATA"
		}
		return r.Status
	}
	text := data(r.Answer)
	if r.Status != "NOERROR" {
		text = r.Status + " " + text
	}
	if len(r.Additional) > 0 {
		text += " | " + data(r.Additional)
	}
	return text
}

func data(records []kit.DigRecord) string {
	var all []string
	for _, rr := range records {
		fields := strings.Fields(rr.Data)
		all = append(all, fields[len(fields)-1])
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
