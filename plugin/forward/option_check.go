package forward

import (
	"errors"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const (
	// unnamedFor is the time after which an upstream that answers only without the options for cluster DNS is queried with them again.
	unnamedFor = time.Minute
	// optionPause is the minimum time between two checks of an upstream that answers queries with the options.
	optionPause = 10 * time.Second
)

// doubtOptions finds out whether the upstream answers queries with the options for cluster DNS, after a client's query was refused
// or not answered. That alone shows nothing: the bytes of the client may be the reason.
func (u *upstream) doubtOptions() {
	if (u.c.caller != nil || u.c.coherent) && u.optionCheck.CompareAndSwap(false, true) {
		go u.checkOptions()
	}
}

// checkOptions queries the upstream with and without the options. While only those without are answered, clients' queries have none.
func (u *upstream) checkOptions() {
	defer u.optionCheck.Store(false)
	for wait := time.Duration(0); sleep(u.ctx, wait); wait = u.optionsAgain {
		failure, known := u.failureOfOptions()
		switch unnamed := failure != ""; {
		case !known || u.unnamed.Swap(unnamed) == unnamed:
		case unnamed:
			log.Warningf("Upstream %s %s queries with the option %s, and answers those without: it gets queries without it, and is checked every %v",
				u.address, failure, u.c.option(), u.optionsAgain)
		default:
			log.Infof("Upstream %s answers queries with the option %s again", u.address, u.c.option())
		}
		if !u.unnamed.Load() {
			sleep(u.ctx, min(u.optionsAgain, optionPause))
			return
		}
	}
}

// option returns the name of the option of the Corefile.
func (c *config) option() string {
	if c.caller == nil {
		return "coherent"
	}
	return "caller"
}

// failureOfOptions sends a query without the options, and then twice with them and without. failure is the predicate of an upstream
// that fails both queries with the options, "" if it answers one of them. known is false if the queries without the options are not
// all answered alike.
func (u *upstream) failureOfOptions() (failure string, known bool) {
	carrier := u.checkCarrier()
	if u.tcpBad.Load() {
		carrier = u.udp
	}
	plain := new(dns.Msg).SetQuestion(u.c.optionZone(), dns.TypeSOA)
	before := u.query(carrier, plain)
	if before.err != nil {
		return "", false
	}
	for range 2 { // a hang, or a lost packet, fails only one of the queries
		if failure = failureOf(u.query(carrier, u.c.withOptions(plain)), before.rcode); failure == "" {
			return "", true
		}
		if after := u.query(carrier, plain); after.err != nil || after.rcode != before.rcode {
			return "", false
		}
	}
	return failure, true
}

// failureOf returns the predicate of an upstream for its reply to a query with the options, "" if that is no failure. plain is the
// response code to the same query without the options.
func failureOf(r result, plain int) string {
	switch {
	case errors.Is(r.err, transport.ErrBusy): // it was not sent
		return ""
	case r.err != nil:
		return "does not answer"
	case r.rcode == plain:
		return ""
	case r.rcode == dns.RcodeBadVers: // RcodeToString returns BADSIG, another name of the code
		return "answers BADVERS to"
	case r.rcode == dns.RcodeServerFailure, r.rcode == dns.RcodeRefused, r.rcode == dns.RcodeFormatError, r.rcode == dns.RcodeNotImplemented:
		return "answers " + dns.RcodeToString[r.rcode] + " to"
	}
	return ""
}

// optionZone returns a zone of the stanza or of its server block, not the root if there is another.
func (c *config) optionZone() string {
	zones := append([]string{c.from}, c.blockZones...)
	i := slices.IndexFunc(zones, func(zone string) bool { return zone != "." })
	return zones[max(i, 0)]
}

// withOptions returns a query with the options for cluster DNS.
func (c *config) withOptions(m *dns.Msg) *dns.Msg {
	m = m.Copy().SetEdns0(ednsRoom, false)
	opt := m.IsEdns0()
	if c.caller != nil {
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: c.caller[wire.OptionLen:]})
	}
	if c.coherent {
		opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: wire.OptionNotify})
	}
	return m
}
