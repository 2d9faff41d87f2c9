//go:build linux

package clients

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// tools are the tools that print a reply in the form of a zone file.
func tools() []client {
	return []client{
		tool("dig", "dig", "+nocookie"),
		tool("kdig", "kdig").expect(both(noEDNS, overUDP)),
		tool("kdig with EDNS, a cookie, padding and a large buffer", "kdig", "+edns", "+cookie", "+padding=128", "+nsid", "+bufsize=4096").
			expect(both(overUDP, withOptions(4096, map[uint16]int{dns.EDNS0COOKIE: 8, dns.EDNS0PADDING: 128, dns.EDNS0NSID: 0}))),
		tool("kdig over TCP", "kdig", "+tcp").expect(overTCP),
		tool("drill", "drill", "-a"),
		tool("drill with DNSSEC OK", "drill", "-a", "-D").
			expect(each("with DNSSEC OK", func(s sent) bool { return s.IsEdns0() != nil && s.IsEdns0().Do() })),
		{name: "delv", programs: []string{"delv"}, run: func(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
			for _, q := range all {
				r := parseDelv(n.Run(t, "delv", "-i", "@"+server, q.name, q.qtype))
				replies = append(replies, r)
			}
			return replies
		}},
	}
}

// expect returns the client with an expectation of its queries.
func (c client) expect(e expectation) client {
	c.sends = e
	return c
}

// tool is a tool with dig's form of output.
func tool(name, program string, args ...string) client {
	run := func(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
		for _, q := range all {
			out := n.Run(t, program, append(slices.Clone(args), "@"+server, q.name, q.qtype)...)
			replies = append(replies, lastReply(out))
		}
		return replies
	}
	return client{name: name, programs: []string{program}, run: run}
}

// lastReply returns the last reply in the output of a tool: the first may be truncated.
func lastReply(out string) reply {
	all := kit.ParseDig(out)
	if len(all) == 0 {
		return reply{status: "none"}
	}
	last := all[len(all)-1]
	r := reply{status: last.Status}
	for _, rr := range last.Answer {
		r.records = append(r.records, rr.Type+" "+rr.Data)
	}
	return r
}

// delvStatus are the lines of delv's output, which has no header, that state the status.
var delvStatus = []struct {
	line   *regexp.Regexp
	status string
}{
	{regexp.MustCompile(`(?m)^; authoritative$`), "NOERROR"},
	{regexp.MustCompile(`(?m)^; negative response, answer not validated\n;.*;-\$NXDOMAIN$`), "NXDOMAIN"},
	{regexp.MustCompile(`(?m)^; negative response, answer not validated\n;.*;-\$NXRRSET$`), "NODATA"},
}

// parseDelv parses the output of delv. It has no status after a failure, where delv writes "resolution failed" and exits with 0.
func parseDelv(out string) (r reply) {
	for _, s := range delvStatus {
		if s.line.MatchString(out) {
			r.status = s.status
		}
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 4 && fields[0][0] != ';' {
			r.records = append(r.records, strings.Join(fields[3:], " "))
		}
	}
	return r
}
