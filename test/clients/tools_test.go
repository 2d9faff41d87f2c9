//go:build linux

package clients

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// tools are the tools that print a reply in the form of a zone file.
func tools() []client {
	return []client{
		tool("dig", "dig", "+nocookie"),
		tool("kdig", "kdig"),
		tool("kdig with EDNS, a cookie, padding and a large buffer", "kdig", "+edns", "+cookie", "+padding=128", "+nsid", "+bufsize=4096"),
		tool("kdig over TCP", "kdig", "+tcp"),
		tool("drill", "drill", "-a"),
		tool("drill with DNSSEC OK", "drill", "-a", "-D"),
		{name: "delv", programs: []string{"delv"}, run: func(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
			for _, q := range all {
				out, err := n.Try("delv", "-i", "@"+server, q.name, q.qtype)
				r := parseDelv(out)
				if err != nil && r.status == "NOERROR" {
					t.Errorf("%s: %v", q, err)
				}
				replies = append(replies, r)
			}
			return replies
		}},
	}
}

// tool is a tool with dig's form of output.
func tool(name, program string, args ...string) client {
	run := func(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
		for _, q := range all {
			out := n.Run(t, program, append(slices.Clone(args), "@"+server, q.name, q.qtype)...)
			replies = append(replies, parseDig(out))
		}
		return replies
	}
	return client{name: name, programs: []string{program}, run: run}
}

var statusLine = regexp.MustCompile(`;; ->>HEADER<<-.*(?:status|rcode): ([A-Z]+)`)

// parseDig parses the last reply in the output of a tool: the first may be truncated.
func parseDig(out string) (r reply) {
	if i := strings.LastIndex(out, ";; ->>HEADER<<-"); i >= 0 {
		out = out[i:]
	}
	r.status = "none"
	if m := statusLine.FindStringSubmatch(out); m != nil {
		r.status = m[1]
	}
	inAnswer := false
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, ";; ANSWER SECTION:"):
			inAnswer = true
		case line == "":
			inAnswer = false
		case inAnswer:
			r.records = append(r.records, parseRecord(line)...)
		}
	}
	return r
}

// parseRecord returns the type and the data of a line of a zone file.
func parseRecord(line string) []string {
	fields := strings.Fields(line)
	if len(fields) < 5 || line[0] == ';' {
		return nil
	}
	return []string{strings.Join(fields[3:], " ")}
}

// parseDelv parses the output of delv, which has no header.
func parseDelv(out string) (r reply) {
	for text, status := range map[string]string{"$NXDOMAIN": "NXDOMAIN", "$NXRRSET": "NODATA"} {
		if strings.Contains(out, text) {
			r.status = status
		}
	}
	for line := range strings.Lines(out) {
		r.records = append(r.records, parseRecord(strings.TrimSpace(line))...)
	}
	if r.status == "" {
		r.status = "NOERROR"
	}
	return r
}
