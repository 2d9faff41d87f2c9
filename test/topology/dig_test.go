//go:build linux

package topology

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/netns"
)

// question is what dig asks for.
type question struct{ name, qtype string }

// reply is what dig prints of one.
type reply struct {
	status                        string
	answer, authority, additional []string // records without OPT: owner, TTL, class, type, data
}

// asking is who asks whom, and how.
type asking struct {
	from    *netns.Namespace
	server  string
	options []string // of dig
}

// claims returns the option of dig by which a query says that it comes from a node, maybe in a zone.
func claims(node, zone string) string {
	data := fmt.Sprintf("01%02x%x", len(node), node)
	if zone != "" {
		data += fmt.Sprintf("%02x%x", len(zone), zone)
	}
	return "+ednsopt=65313:" + data
}

// with is the same with further options of dig.
func (a asking) with(options ...string) asking {
	a.options = append(slices.Clone(a.options), options...)
	return a
}

func (a asking) String() string {
	name := a.from.Name[strings.LastIndexByte(a.from.Name, '-')+1:]
	return strings.TrimSpace(fmt.Sprintf("from %s: dig @%s %s", name, a.server, strings.Join(a.options, " ")))
}

// ask runs one dig for all questions. It is an error if one has no reply, or if a reply tells of callers: it
// is not to have the option 65313, whoever asks.
func (a asking) ask(questions ...question) ([]reply, error) {
	args := append([]string{"@" + a.server, "+nocookie", "+tries=2", "+time=5"}, a.options...)
	for _, q := range questions {
		args = append(args, q.name, q.qtype)
	}
	out, err := a.from.Try("dig", args...)
	if err != nil {
		return nil, err
	}
	parts := strings.Split(out, ";; ->>HEADER<<- ")[1:]
	if len(parts) != len(questions) {
		return nil, fmt.Errorf("%v: %d replies to %d questions:\n%s", a, len(parts), len(questions), out)
	}
	replies := make([]reply, len(parts))
	for i, p := range parts {
		if strings.Contains(p, "OPT=65313") {
			return nil, fmt.Errorf("%v: the reply has the option 65313:\n%s", a, p)
		}
		replies[i] = parse(p)
	}
	return replies, nil
}

var statusOf = regexp.MustCompile(`status: ([A-Z]+),`)

// parse reads what dig prints of one reply, from the header on.
func parse(text string) (r reply) {
	if m := statusOf.FindStringSubmatch(text); m != nil {
		r.status = m[1]
	}
	section := &[]string{} // of nothing that counts
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

// String returns the last words of the answers, sorted, which are addresses and the targets of SRV; behind a bar
// those of further records, which are the targets' addresses; and the status if there is no answer.
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
