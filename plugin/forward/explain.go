package forward

import (
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
)

// explainReply adds the result of an exchange.
func explainReply(t *explain.Trace, reply forwarded, err error) {
	if err != nil {
		t.Add(pluginName, "no reply: %v", err)
	}
	if reply.voucher != nil {
		t.Add(pluginName, "the session with %s vouches for the answer: it is valid until the session reports its end", reply.from.address)
	}
}

// explainCall adds a call, and the caller in its query: clusterdns explains the reply to it.
func (x *exchange) explainCall(a *attempt, call *transport.Call, overUDP bool) {
	if x.explained == nil {
		return
	}
	over := "on a connection"
	if overUDP {
		over = "over UDP"
	}
	if !x.isNamed(call) || x.f.caller == nil {
		x.explained.Add(pluginName, "query to %s %s", a.to.address, over)
		return
	}
	node, zone, _ := caller.Parse(x.f.caller[optionHead:])
	x.explained.Add(pluginName, "query to %s %s, caller: node %q, zone %q; clusterdns explain there describes its answer", a.to.address, over, node, zone)
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
		x.explained.Add(pluginName, "%s responds %s", a.to.address, dns.RcodeToString[x.message.rcode])
	}
}
