package forward

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coredns/coredns/plugin/pkg/proxy"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
	"github.com/opentracing/opentracing-go/ext"

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
	tcpErr  error         // last error of the stream
	open    bool          // the share is not over
	damaged bool          // a reply over UDP was malformed
	passed  bool          // the next upstream was tried, while the upstream of this attempt may hold the query
	refused bool          // the upstream has refused the query with options for cluster DNS
	trial   bool          // of an upstream that is down
	span    ot.Span       // nil without tracing, and after the last call
}

// inFlight reports whether a call of the attempt is in flight, even a late one.
func (a *attempt) inFlight() bool { return a.stream != nil || a.udp != nil }

func (a *attempt) endTrial() {
	if a.trial {
		a.trial = false
		a.to.trials.Add(-1)
	}
}

// trace starts the span of an attempt, as CoreDNS names it, if the query has a span.
func (a *attempt) trace(query ot.Span) {
	if query != nil {
		a.span = query.Tracer().StartSpan("connect", ot.ChildOf(query.Context()), ot.Tag{Key: string(ext.PeerAddress), Value: a.to.address})
	}
}

func (a *attempt) endSpan() {
	if a.span != nil {
		a.span.Finish()
		a.span = nil
	}
}

// receive processes a call that has ended. It returns true if the message is the client's reply.
func (x *exchange) receive(call *transport.Call) bool {
	i := slices.IndexFunc(x.attempts, func(a *attempt) bool { return a.stream == call || a.udp == call })
	a := x.attempts[i]
	overUDP := a.udp == call
	if overUDP {
		a.udp = nil
	} else {
		a.stream = nil
	}
	if overUDP && call.CaseChanged {
		a.to.doubtCase()
	}
	now := time.Now()
	err, replied := call.Err, false
	if err == nil {
		err = x.readReply(&x.message, call, a.to, overUDP)
	}
	if err == nil {
		replied = x.read(a, call, overUDP, now)
	} else {
		x.callFailed(a, err, overUDP, now)
	}
	if !a.inFlight() {
		a.endSpan()
	}
	if !replied {
		x.message.release()
	}
	return replied
}

// read evaluates a reply, unless it refuses an option that was added to the query: then the query is repeated without options.
func (x *exchange) read(a *attempt, call *transport.Call, overUDP bool, now time.Time) bool {
	m, named := &x.message, x.isNamed(call)
	x.explainResponse(a)
	if named && (m.refuses() || m.Rcode == dns.RcodeServerFailure || m.Rcode == dns.RcodeRefused) {
		a.to.doubtOptions()
	}
	if named && m.refuses() {
		x.repeatPlain(a, m.Rcode, overUDP, now)
		return false
	}
	if err := x.clean(m, x.searches && named); err != nil {
		x.callFailed(a, err, overUDP, now)
		return false
	}
	if m.voucher = call.Voucher; overUDP && a.to.pool != nil {
		m.voucher = a.to.pool.WithoutSession()
	}
	if x.failover > 0 {
		m.voucher = nil // the reply that led to the failover may become invalid earlier
	}
	return x.evaluate(a, overUDP, now)
}

// callFailed processes a call without an answer. The attempt continues if its other transport may answer.
func (x *exchange) callFailed(a *attempt, err error, overUDP bool, now time.Time) {
	x.err = fmt.Errorf("%s: %w", a.to.address, err)
	x.explainFailure(a, err)
	if !overUDP {
		a.tcpErr = err
	}
	malformed := errors.Is(err, errMalformed)
	switch {
	case !a.open, a.stream != nil, a.udp != nil:
		return
	case malformed && overUDP && !a.damaged: // perhaps damaged on the way
		a.damaged = true
		x.sendUDP(a)
		return
	case !malformed && !overUDP && !a.udpAt.IsZero():
		a.udpAt = time.Time{}
		x.sendUDP(a)
		return
	}
	a.open = false
	a.endTrial()
	if !malformed && !errors.Is(err, transport.ErrBusy) && !isUnsupported(err) { // else the upstream has not failed
		a.to.failed()
	}
	if isLasting(err) && x.tried >= len(x.order) {
		x.last = true
		return
	}
	x.retry(now, false)
}

// isLasting reports whether an immediate retry at the same upstream would fail too: too many queries wait, the transport carries no
// such query, the reply is malformed, or the certificate is wrong.
func isLasting(err error) bool {
	var unverified *tls.CertificateVerificationError
	return errors.Is(err, transport.ErrBusy) || errors.Is(err, errMalformed) || isUnsupported(err) || errors.As(err, &unverified)
}

// isUnsupported reports whether an error means that the transport cannot carry the query: a zone transfer over QUIC, RFC 9250
// section 4.
func isUnsupported(err error) bool {
	return errors.Is(err, proxy.ErrUnsupportedRequest) || errors.Is(err, proxy.ErrInvalidRequest)
}

// evaluate returns true if the message is the client's reply, or reserves it while a better one may arrive.
func (x *exchange) evaluate(a *attempt, overUDP bool, now time.Time) bool {
	u, m := a.to, &x.message
	u.works()
	u.observe(m.Rcode, now.Sub(a.started))
	fellBack := overUDP && x.wantsTCP()
	if fellBack {
		x.fellBack(a)
	}
	if m.Truncated() && overUDP && (fellBack || x.f.preferUDP) {
		return x.truncated(a, fellBack)
	}
	a.open = false
	a.endTrial()
	if slices.Contains(x.f.failover, m.Rcode) {
		x.failover++
		if x.failover < len(x.all) && !x.last {
			x.message.voucher = nil // the next upstream may have a better reply later
			x.reserve(u)
			x.try(now)
			return false
		}
		x.from = u
		return true
	}
	if m.Rcode != dns.RcodeServerFailure && m.Rcode != dns.RcodeRefused {
		x.from = u
		return true
	}
	better := x.from == nil || !x.reserved.truncated() // a truncated answer at least shows that there are records
	if better {
		x.reserve(u)
	}
	if x.waits() {
		return false
	}
	if !better {
		x.useReserved()
	}
	return true
}

// reserve stores the message for the client in case that no better one arrives.
func (x *exchange) reserve(from *upstream) {
	x.reserved, x.from = reserved{append(x.reserved.b[:0], x.message.Message...), x.message.voucher}, from
}
