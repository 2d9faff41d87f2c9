package block

import (
	"context"
	"fmt"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/rewrite"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// Rewrites are the rules of plugin rewrite in a block.
type Rewrites []rewrite.Rule

// byQuestion are the types of rules that depend on the name, the type and the class of a query alone. Package rewrite does not
// export them. Rules of other types, which depend on metadata, add EDNS options or change every reply with an alias, have to see
// every query.
var byQuestion = map[string]bool{
	"*rewrite.exactNameRule": true, "*rewrite.prefixNameRule": true, "*rewrite.suffixNameRule": true,
	"*rewrite.substringNameRule": true, "*rewrite.regexNameRule": true,
	"*rewrite.exactTTLRule": true, "*rewrite.prefixTTLRule": true, "*rewrite.suffixTTLRule": true,
	"*rewrite.substringTTLRule": true, "*rewrite.regexTTLRule": true,
	"*rewrite.exactRCodeRule": true, "*rewrite.prefixRCodeRule": true, "*rewrite.suffixRCodeRule": true,
	"*rewrite.substringRCodeRule": true, "*rewrite.regexRCodeRule": true,
	"*rewrite.typeRule": true, "*rewrite.classRule": true,
}

// rewritesOf returns the rules of plugin rewrite. It returns false if one of them has to see every query.
func rewritesOf(h plugin.Handler) (r Rewrites, ok bool) {
	rw, ok := h.(rewrite.Rewrite)
	if !ok {
		return nil, false
	}
	for _, rule := range rw.Rules {
		if !byQuestion[fmt.Sprintf("%T", rule)] {
			return nil, false
		}
	}
	return rw.Rules, true
}

// Apply reports whether a rule applies to queries of class IN for a name, in lower case, and a type.
func (r Rewrites) Apply(name string, qtype uint16) bool {
	m := &dns.Msg{Question: []dns.Question{{Name: name, Qtype: qtype, Qclass: dns.ClassINET}}}
	for _, rule := range r {
		if _, result := rule.Rewrite(context.Background(), request.Request{Req: m}); result != rewrite.RewriteIgnored {
			return true
		}
	}
	return false
}
