package kit

import (
	"regexp"
	"slices"
	"strings"
)

// DigReply is a reply in the output of dig, without the OPT record.
type DigReply struct {
	Status                        string // response code, such as "NOERROR"
	Answer, Authority, Additional []DigRecord
}

// DigRecord is a record of a DigReply. Its data has single blanks.
type DigRecord struct{ Owner, TTL, Type, Data string }

// digHeader begins a reply of dig, kdig (its fields end with semicolons) and drill (it has "rcode").
var digHeader = regexp.MustCompile(`(?m)^;; ->>HEADER<<- .*(?:status|rcode): ([A-Z]+)`)

// ParseDig returns the replies in the output of dig, or of a tool with its form of output.
func ParseDig(out string) (all []DigReply) {
	headers := digHeader.FindAllStringSubmatchIndex(out, -1)
	slices.Reverse(headers)
	for _, h := range headers {
		r := DigReply{Status: out[h[2]:h[3]]}
		r.parse(out[h[1]:])
		out, all = out[:h[0]], append(all, r)
	}
	slices.Reverse(all)
	return all
}

// parse parses the sections of records.
func (r *DigReply) parse(text string) {
	sections := map[string]*[]DigRecord{";; ANSWER SECTION:": &r.Answer, ";; AUTHORITY SECTION:": &r.Authority, ";; ADDITIONAL SECTION:": &r.Additional}
	var section *[]DigRecord
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch f := strings.Fields(line); {
		case line == "":
			section = nil
		case sections[line] != nil:
			section = sections[line]
		case section != nil && line[0] != ';' && len(f) > 4:
			*section = append(*section, DigRecord{f[0], f[1], f[3], strings.Join(f[4:], " ")})
		}
	}
}
