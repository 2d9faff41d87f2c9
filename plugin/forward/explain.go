package forward

import (
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// explainReply adds the result of an exchange to the trace.
func explainReply(t *explain.Trace, reply forwarded, err error) {
	if err != nil {
		t.Add(pluginName, "no reply: %v", err)
	}
	if reply.voucher.Vouches(validity.Now()) {
		t.Add(pluginName, "the session with %s vouches for the answer: it is valid until the session reports its end", reply.from.address)
	}
}

// explainCall adds a call to the trace, and for a call to cluster DNS the command that explains the reply there.
func (x *exchange) explainCall(a *attempt, call *transport.Call, overUDP bool) {
	if x.explained == nil {
		return
	}
	over := "on a connection"
	if overUDP {
		over = "over UDP"
	}
	m := new(dns.Msg)
	if !x.isNamed(call) || m.Unpack(call.Query) != nil {
		x.explained.Add(pluginName, "query to %s %s", a.to.address, over)
		return
	}
	x.explained.Add(pluginName, "query to cluster DNS, %s, %s; its answer is explained there by: %s", a.to.address, over, x.commandFor(m))
}

// commandFor returns the command that explains a query at cluster DNS, for a shell.
func (x *exchange) commandFor(m *dns.Msg) string {
	name, search := m.Question[0].Name, ""
	if list, ok := searchlist.OptionOf(m); ok {
		suffixes, _ := searchlist.ParseSuffixes(list)
		if len(suffixes) > 0 {
			name = strings.TrimSuffix(searchlist.Base(strings.ToLower(name), suffixes[0]), ".")
			search = " -search " + quoted(strings.Join(suffixes, ","))
		}
	}
	command := "clusterdns explain " + quoted(name) + " -type " + dns.Type(m.Question[0].Qtype).String() + search
	if x.f.caller == nil {
		return command
	}
	node, zone, _ := caller.Parse(x.f.caller[wire.OptionLen:])
	if command += " -node " + string(node); len(zone) > 0 {
		command += " -zone " + string(zone)
	}
	return command
}

// quoted returns a word for a shell: names may have any characters.
func quoted(word string) string {
	plain := func(c rune) bool {
		return c == '.' || c == '-' || c == '_' || c == ',' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	if !strings.ContainsFunc(word, func(c rune) bool { return !plain(c) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// explainFailure adds the failure of an attempt.
func (x *exchange) explainFailure(a *attempt, err error) {
	if x.explained != nil {
		x.explained.Add(pluginName, "%s: %v", a.to.address, err)
	}
}

// explainResponse adds a response, which may lead to a further attempt.
func (x *exchange) explainResponse(a *attempt) {
	if x.explained != nil {
		x.explained.Add(pluginName, "%s responds %s", a.to.address, dns.RcodeToString[x.message.Rcode])
	}
}
