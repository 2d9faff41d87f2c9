//go:build linux

package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/netns"
)

// question is a question of a query.
type question struct{ name, qtype string }

// reply is a reply as dig prints it.
type reply struct {
	status                        string
	answer, authority, additional []string // records without OPT: owner, TTL, class, type, data
}

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
	parts := strings.Split(out, ";; ->>HEADER<<- ")[1:]
	if len(parts) != len(questions) {
		return nil, fmt.Errorf("%v: %d replies to %d questions:\n%s", q, len(parts), len(questions), out)
	}
	replies := make([]reply, len(parts))
	for i, p := range parts {
		if strings.Contains(p, "OPT=65313") {
			return nil, fmt.Errorf("%v: the reply has the option 65313:\n%s", q, p)
		}
		replies[i] = parse(p)
	}
	return replies, nil
}

var statusOf = regexp.MustCompile(`status: ([A-Z]+),`)

// parse parses one reply in the output of dig, from the header on.
func parse(text string) (r reply) {
	if m := statusOf.FindStringSubmatch(text); m != nil {
		r.status = m[1]
	}
	section := &[]string{} // a section that is ignored
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			section = &[]string{}
		case line == ";; ANSWER SECTION:":
			section = &r.answer
		case line == ";; AUTHORITY SECTION:":
			section = &r.authority
		case line == ";; ADDITIONAL SECTION:":
			section = &r.additional
		case line[0] != ';':
			*section = append(*section, line)
		}
	}
	return r
}

// String returns the addresses or SRV targets of the answer section, sorted, and after a bar the addresses of the additional
// section. Without an answer, it returns the status.
func (r reply) String() string {
	if len(r.answer) == 0 {
		soa := slices.ContainsFunc(r.authority, func(record string) bool { return strings.Contains(record, "\tSOA\t") })
		if r.status == "NOERROR" && soa {
			return "NODATA"
		}
		return r.status
	}
	text := data(r.answer)
	if r.status != "NOERROR" {
		text = r.status + " " + text
	}
	if len(r.additional) > 0 {
		text += " | " + data(r.additional)
	}
	return text
}

func data(records []string) string {
	var all []string
	for _, record := range records {
		fields := strings.Fields(record)
		all = append(all, fields[len(fields)-1])
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}
