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

// send sends the query the way that the configuration and what is known of the upstream say.
func (x *exchange) send(a *attempt, now time.Time) {
	u, over := a.to, x.wantsTCP()
	switch {
	case u.udp == nil:
		x.sendStream(a)
	case over && x.f.fallbackUDP && u.tcpBad.Load() && !x.alone:
		x.sendUDP(a)
	case over || x.alone:
		x.sendStream(a)
		if x.f.fallbackUDP && !x.alone {
			a.udpAt = now.Add(min(connectTime, a.share/2))
		}
	default:
		x.sendUDP(a)
	}
}

// wantsTCP reports whether an upstream that takes TCP and UDP is asked over TCP.
func (x *exchange) wantsTCP() bool { return x.f.forceTCP || !x.f.preferUDP && x.overTCP }

func (x *exchange) newCall(a *attempt) *transport.Call {
	call := &x.call
	if call.Query != nil {
		call = new(transport.Call)
	}
	*call = transport.Call{Query: x.queryFor(a), Deadline: x.deadline, Done: x.results, Alone: x.alone}
	return call
}

func (x *exchange) sendStream(a *attempt) {
	a.stream = x.newCall(a)
	for _, earlier := range x.attempts {
		if earlier != a && earlier.to == a.to && earlier.stream != nil {
			a.stream.Elsewhere(earlier.stream)
		}
	}
	a.to.stream.Send(a.stream)
}

func (x *exchange) sendUDP(a *attempt) {
	a.udp = x.newCall(a)
	a.to.udp.Send(a.udp)
}

// askUDPToo asks over UDP while nothing has come over TCP. A connection that brings other answers works.
func (x *exchange) askUDPToo(a *attempt, now time.Time) {
	a.udpAt = time.Time{}
	if a.stream == nil || a.udp != nil {
		return
	}
	made, brings := a.to.pool.State(a.stream)
	wait := min(answerTime, a.share/2)
	switch {
	case brings:
	case made && now.Sub(a.started) < wait:
		a.udpAt = a.started.Add(wait)
	default:
		x.sendUDP(a)
	}
}

// cancel gives up what is on its way.
func (a *attempt) cancel() {
	a.endTrial()
	if a.stream != nil {
		a.to.stream.Cancel(a.stream)
	}
	if a.udp != nil {
		a.to.udp.Cancel(a.udp)
	}
}

// take takes a call that has come back, and returns the answer if it is what the client gets.
func (x *exchange) take(call *transport.Call) (*dns.Msg, *upstream) {
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
	x.missed(a, err, overUDP, now)
	return nil, nil
}

// read looks at an answer, which counts unless it is a refusal of what was added to the query.
func (x *exchange) read(a *attempt, call *transport.Call, reply *dns.Msg, overUDP bool, now time.Time) (*dns.Msg, *upstream) {
	switch {
	case !refuses(reply):
		if a.refusal != 0 && !x.isNamed(call) {
			a.to.leaveUnnamed(a.refusal, now)
		}
	case x.isNamed(call) && x.packUnnamed():
		x.askUnnamed(a, reply, overUDP, now)
		return nil, nil
	}
	x.clean(reply, x.searches && x.isNamed(call))
	return x.answered(a, reply, overUDP, now)
}

// unpack reads an answer.
func (x *exchange) unpack(call *transport.Call, from *upstream, overUDP bool) (*dns.Msg, error) {
	reply := new(dns.Msg)
	if err := reply.Unpack(call.Reply); err != nil {
		from.malformed(overUDP)
		return nil, fmt.Errorf("its answer: %w", err)
	}
	if len(reply.Question) == 0 { // it could not read the query, or did not want to
		asked := new(dns.Msg)
		if err := asked.Unpack(x.query); err != nil {
			return nil, fmt.Errorf("the query: %w", err)
		}
		reply.Question = asked.Question
	}
	reply.Id = x.clientID
	return reply, nil
}

// malformed counts an answer that cannot be read.
func (u *upstream) malformed(overUDP bool) {
	proto := protoUDP
	if !overUDP {
		proto = u.streamProto()
	}
	droppedAnswers.WithLabelValues(u.address, proto, droppedMalformed).Inc()
}

// missed notes that nothing came by one way.
func (x *exchange) missed(a *attempt, err error, overUDP bool, now time.Time) {
	x.err = fmt.Errorf("%s: %w", a.to.address, err)
	if !overUDP {
		a.tcpErr = err
	}
	switch {
	case !a.open:
		return
	case a.stream != nil || a.udp != nil: // the other way may bring something
		return
	case !overUDP && !a.udpAt.IsZero():
		a.udpAt = time.Time{}
		x.sendUDP(a)
		return
	}
	a.open = false
	a.endTrial()
	if !errors.Is(err, transport.ErrBusy) { // which is no fault of the upstream
		a.to.failed()
	}
	if hopeless(err) && x.tried >= len(x.order) {
		x.last = true
		return
	}
	x.failed(now, false)
}

// hopeless reports whether it would be of no use to ask again soon: others wait already, or the server is not
// the one that it should be.
func hopeless(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, transport.ErrBusy) || errors.As(err, &unverified)
}

// answered decides what becomes of an answer.
func (x *exchange) answered(a *attempt, reply *dns.Msg, overUDP bool, now time.Time) (*dns.Msg, *upstream) {
	u := a.to
	u.works()
	u.observe(reply.Rcode, now.Sub(a.started))
	instead := overUDP && x.wantsTCP()
	if instead {
		fallbacks.WithLabelValues(u.address, fallbackUDP).Inc()
		u.doubtTCP(why(a.tcpErr))
		if a.stream != nil { // the next query is not to wait on the same connection
			u.stream.Late(a.stream)
		}
	}
	if reply.Truncated && overUDP && (instead || x.f.preferUDP) {
		x.hold(reply, u)
		if a.open && !u.tcpBad.Load() && a.stream == nil && !instead {
			fallbacks.WithLabelValues(u.address, fallbackTruncated).Inc()
			x.sendStream(a)
		}
		if a.open && a.stream != nil {
			return nil, nil
		}
		return reply, u
	}
	a.open = false
	a.endTrial()
	if slices.Contains(x.f.failover, reply.Rcode) {
		x.failover++
		if x.failover < len(x.all) && !x.last {
			x.hold(reply, u)
			x.ask(now)
			return nil, nil
		}
		return reply, u
	}
	if !bad(reply) {
		return reply, u
	}
	if x.held == nil || !x.held.Truncated { // which at least says that there is an answer
		x.hold(reply, u)
	}
	if x.waits() {
		return nil, nil
	}
	return x.held, x.heldFrom
}

// hold keeps an answer for when no better one comes.
func (x *exchange) hold(reply *dns.Msg, from *upstream) { x.held, x.heldFrom = reply, from }

// bad reports whether another upstream may know better.
func bad(reply *dns.Msg) bool {
	return reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeRefused
}

// why is an error in words, where there need not be one.
func why(err error) string {
	if err == nil {
		return "an answer is late"
	}
	return err.Error()
}
