package block

import (
	"strings"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/log"
	"github.com/coredns/coredns/plugin/pkg/response"
)

// Logged are the replies that plugin log logs, which the plugin has to see.
type Logged uint8

const (
	LoggedData   Logged = 1 << iota // NOERROR with answers
	LoggedDenial                    // NOERROR and NXDOMAIN without answers
	LoggedError                     // other replies
	LoggedSigned                    // replies with an expired signature, to queries with DO

	loggedAll = LoggedData | LoggedDenial | LoggedError
)

// LogRule is a rule of plugin log. For a name, the first rule whose zone it is in applies.
type LogRule struct {
	Zone   string
	Logged Logged
}

// LogRules are the rules of a block, in their order.
type LogRules []LogRule

// Logged returns the replies that are logged for the names of a zone, except names in subzones with rules of their own.
func (l LogRules) Logged(zone string) Logged {
	for _, r := range l {
		if plugin.Name(r.Zone).Matches(zone) {
			return r.Logged
		}
	}
	return 0
}

// logRules returns the rules of plugin log, false for another handler.
func logRules(h plugin.Handler) (all LogRules, ok bool) {
	l, ok := h.(log.Logger)
	if !ok {
		return nil, false
	}
	for _, r := range l.Rules {
		rule := LogRule{Zone: strings.ToLower(r.NameScope)}
		for class := range r.Class {
			switch class { // see response.Typify
			case response.Success:
				rule.Logged |= LoggedData | LoggedDenial // NOERROR without answers and without an SOA record
			case response.Denial:
				rule.Logged |= LoggedDenial
			case response.Error:
				rule.Logged |= LoggedError | LoggedSigned
			default:
				rule.Logged |= loggedAll
			}
		}
		all = append(all, rule)
	}
	return all, true
}

// logsAll reports whether answers for all names of the block are logged.
func (b *Block) logsAll(rules LogRules) bool {
	zones := []string{b.config.Zone}
	if b.conf != nil {
		zones = append(zones, b.conf.zonesOf(b)...)
	}
	for _, zone := range zones {
		if rules.Logged(zone)&LoggedData == 0 {
			return false
		}
	}
	return true
}
