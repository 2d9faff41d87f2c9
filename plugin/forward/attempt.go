package forward

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// attempt is a query to one upstream.
type attempt struct {
	to      *upstream
	stream  *transport.Call // in flight over TCP, TLS, HTTPS or QUIC, or nil
	udp     *transport.Call // in flight over UDP, or nil
	started time.Time
	share   time.Duration // of the query's time, after which the attempt has failed
	udpAt   time.Time     // when UDP is tried as well; zero is never
	tcpErr  error         // of TCP
	open    bool          // the share is not over
	refusal int           // response code to the query with the caller; 0 if it was not refused
	trial   bool          // of an upstream that is down
}

// cancel cancels the calls of an attempt.
func (a *attempt) cancel() {
	a.endTrial()
	if a.stream != nil {
		a.to.stream.Cancel(a.stream)
	}
	if a.udp != nil {
		a.to.udp.Cancel(a.udp)
	}
}

func (a *attempt) endTrial() {
	if a.trial {
		a.trial = false
		a.to.trials.Add(-1)
	}
}

// receive processes a call that has ended, and returns the answer if it is the client's.
func (x *exchange) receive(call *transport.Call) (*dns.Msg, *upstream) {
	i := slices.IndexFunc(x.attempts, func(a *attempt) bool { return a.stream == call || a.udp == call })
	a := x.attempts[i]
	overUDP := a.udp == call
	if overUDP {
		a.udp = nil
	} else {
		a.stream = nil
	}
	now := time.Now()
	err := call.Err
	if err == nil {
		var reply *dns.Msg
		if reply, err = x.unpack(call, a.to, overUDP); err == nil {
			return x.read(a, call, reply, overUDP, now)
		}
	}
	x.callFailed(a, err, overUDP, now)
	return nil, nil
}

// read evaluates an answer, unless it refuses an option that was added to the query: then the query is repeated
// without.
func (x *exchange) read(a *attempt, call *transport.Call, reply *dns.Msg, overUDP bool, now time.Time) (*dns.Msg, *upstream) {
	switch {
	case !refuses(reply):
		if a.refusal != 0 && !x.isNamed(call) {
			a.to.markUnnamed(a.refusal, now)
		}
	case x.isNamed(call) && x.packUnnamed():
		x.repeatUnnamed(a, reply, overUDP, now)
		return nil, nil
	}
	x.clean(reply, x.searches && x.isNamed(call))
	return x.evaluate(a, reply, overUDP, now)
}

// unpack unpacks an answer.
func (x *exchange) unpack(call *transport.Call, from *upstream, overUDP bool) (*dns.Msg, error) {
	reply := new(dns.Msg)
	if err := reply.Unpack(call.Reply); err != nil {
		proto := protoUDP
		if !overUDP {
			proto = from.streamProto()
		}
		droppedAnswers.WithLabelValues(from.address, proto, transport.Malformed).Inc()
		return nil, fmt.Errorf("malformed answer: %w", err)
	}
	if len(reply.Question) == 0 { // the upstream could not read the query, or refuses it
		query := new(dns.Msg)
		if err := query.Unpack(x.query); err != nil {
			return nil, fmt.Errorf("unpack the query: %w", err)
		}
		reply.Question = query.Question
	}
	reply.Id = x.clientID
	return reply, nil
}

// callFailed processes a call without an answer. The attempt continues if its other transport may answer.
func (x *exchange) callFailed(a *attempt, err error, overUDP bool, now time.Time) {
	x.err = fmt.Errorf("%s: %w", a.to.address, err)
	if !overUDP {
		a.tcpErr = err
	}
	switch {
	case !a.open, a.stream != nil, a.udp != nil:
		return
	case !overUDP && !a.udpAt.IsZero():
		a.udpAt = time.Time{}
		x.sendUDP(a)
		return
	}
	a.open = false
	a.endTrial()
	if !errors.Is(err, transport.ErrBusy) { // the upstream has not failed
		a.to.failed()
	}
	if isLasting(err) && x.tried >= len(x.order) {
		x.last = true
		return
	}
	x.retry(now, false)
}

// isLasting reports whether an immediate retry at the same upstream would fail too: too many queries wait, or the
// certificate is wrong.
func isLasting(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, transport.ErrBusy) || errors.As(err, &unverified)
}

// evaluate returns an answer if it is the client's, or reserves it while a better one may arrive.
func (x *exchange) evaluate(a *attempt, reply *dns.Msg, overUDP bool, now time.Time) (*dns.Msg, *upstream) {
	u := a.to
	u.works()
	u.observe(reply.Rcode, now.Sub(a.started))
	fellBack := overUDP && x.wantsTCP()
	if fellBack {
		x.fellBack(a)
	}
	if reply.Truncated && overUDP && (fellBack || x.f.preferUDP) {
		return x.truncated(a, reply, fellBack)
	}
	a.open = false
	a.endTrial()
	if slices.Contains(x.f.failover, reply.Rcode) {
		x.failover++
		if x.failover < len(x.all) && !x.last {
			x.reserve(reply, u)
			x.try(now)
			return nil, nil
		}
		return reply, u
	}
	if reply.Rcode != dns.RcodeServerFailure && reply.Rcode != dns.RcodeRefused {
		return reply, u
	}
	if x.reserved == nil || !x.reserved.Truncated { // a truncated answer at least shows that there are records
		x.reserve(reply, u)
	}
	if x.waits() {
		return nil, nil
	}
	return x.reserved, x.reservedFrom
}

// reserve stores an answer for the client in case that no better one arrives.
func (x *exchange) reserve(reply *dns.Msg, from *upstream) { x.reserved, x.reservedFrom = reply, from }
