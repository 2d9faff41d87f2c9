package forward

import (
	"errors"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

const (
	// dialTime is the time for a handshake before UDP is tried as well, and answerTime the time for an answer on an
	// established connection. Both are at most half of the attempt's share.
	dialTime   = 250 * time.Millisecond
	answerTime = time.Second
	// tcpPause is the time between two checks of an upstream whose TCP does not work.
	tcpPause = 30 * time.Second
)

// send sends the query over the transport that the options, the client and the state of the upstream require.
func (x *exchange) send(a *attempt, now time.Time) {
	u, tcp := a.to, x.wantsTCP()
	switch {
	case u.udp == nil:
		x.sendStream(a)
	case tcp && x.f.fallbackUDP && u.tcpBad.Load() && !x.alone:
		x.sendUDP(a)
	case tcp || x.alone:
		x.sendStream(a)
		if x.f.fallbackUDP && !x.alone {
			a.udpAt = now.Add(min(dialTime, a.share/2))
		}
	default:
		x.sendUDP(a)
	}
}

// wantsTCP reports whether the query is for TCP, if the upstream has TCP and UDP.
func (x *exchange) wantsTCP() bool { return x.f.forceTCP || !x.f.preferUDP && x.overTCP }

func (x *exchange) newCall(a *attempt, overUDP bool) *transport.Call {
	call := &x.call
	if call.Query != nil {
		call = new(transport.Call)
	}
	*call = transport.Call{
		Query: x.queryFor(a, overUDP), Deadline: x.deadline, Owner: x, Alone: x.alone || x.unusual, AnyCase: overUDP && a.to.changesCase(), Signed: x.signed,
	}
	x.explainCall(a, call, overUDP)
	return call
}

func (x *exchange) sendStream(a *attempt) {
	a.stream = x.newCall(a, false)
	for _, earlier := range x.attempts {
		if earlier != a && earlier.to == a.to && earlier.stream != nil {
			a.stream.Elsewhere(earlier.stream)
		}
	}
	x.transmit(a.to.stream, a.stream)
}

func (x *exchange) sendUDP(a *attempt) {
	a.udp = x.newCall(a, true)
	x.transmit(a.to.udp, a.udp)
}

// transmit sends a call. A failure is processed after the event that caused the call.
func (x *exchange) transmit(carrier transport.Carrier, call *transport.Call) {
	if err := carrier.Send(x.batch, call); err != nil {
		call.Err = err
		x.unsent = append(x.unsent, call)
		return
	}
	x.users++
}

// fallBack sends the query over UDP as well, unless TCP may still work: its connection delivers other answers, has a session that
// is heard, so that the upstream may hold the query, or is established while the attempt has lasted for less than answerTime.
func (x *exchange) fallBack(a *attempt, now time.Time) {
	a.udpAt = time.Time{}
	if a.stream == nil || a.udp != nil {
		return
	}
	established, answers, held := a.to.pool.State(a.stream)
	wait := min(answerTime, a.share/2)
	switch {
	case answers:
	case held:
		a.udpAt = now.Add(heldStep)
	case established && now.Sub(a.started) < wait:
		a.udpAt = a.started.Add(wait)
	default:
		x.sendUDP(a)
	}
}

// fellBack processes an answer over UDP to a query that TCP did not answer.
func (x *exchange) fellBack(a *attempt) {
	u := a.to
	fallbacks.WithLabelValues(u.address, fallbackUDP).Inc()
	reason := "an answer is late"
	if a.tcpErr != nil {
		reason = a.tcpErr.Error()
	}
	u.doubtTCP(reason)
	u.doubtOptions()
	if a.stream != nil { // the next query must not wait on the same connection
		u.stream.Late(a.stream)
	}
}

// truncated handles a truncated answer over UDP: the client gets it unless TCP may deliver the whole answer. fellBack
// reports that TCP did not answer.
func (x *exchange) truncated(a *attempt, fellBack bool) bool {
	u := a.to
	x.reserve(u)
	if a.open && !u.tcpBad.Load() && a.stream == nil && !fellBack {
		fallbacks.WithLabelValues(u.address, fallbackTruncated).Inc()
		x.sendStream(a)
	}
	return !a.open || a.stream == nil
}

// doubtTCP checks TCP after UDP has answered in its place. While TCP fails, queries are sent over UDP.
func (u *upstream) doubtTCP(reason string) {
	if !u.tcpBad.Load() && u.tcpCheck.CompareAndSwap(false, true) {
		go u.checkTCP(reason)
	}
}

// checkKeepAlive checks whether the upstream answers a query with edns-tcp-keepalive as it answers one without.
func (u *upstream) checkKeepAlive() {
	plain := u.c.checkQuery(u.c.checkName).SetEdns0(dns.DefaultMsgSize, false)
	extended := plain.Copy()
	extended.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
	for range 2 { // one query may be lost
		with := u.query(u.stream, extended)
		if errors.Is(with.err, transport.ErrBusy) { // the check was not sent
			return
		}
		switch without := u.query(u.stream, plain); {
		case without.err != nil:
			return
		case with.err == nil && with.rcode == without.rcode:
			u.pool.KeepAliveChecked(true)
			return
		}
	}
	u.pool.KeepAliveChecked(false)
}

// checkTCP checks TCP until it works, or UDP does not work either, which shows no fault of TCP.
func (u *upstream) checkTCP(reason string) {
	defer u.tcpCheck.Store(false)
	for {
		err := u.probe(u.stream)
		if err == nil {
			if u.tcpBad.Swap(false) {
				log.Infof("Upstream %s answers over TCP again", u.address)
			}
			u.openSession()
			return
		}
		if u.probe(u.udp) == nil && !u.tcpBad.Swap(true) {
			if text := err.Error(); !strings.Contains(reason, text) {
				reason += "; " + text
			}
			log.Warningf("Upstream %s does not answer over TCP (%s): queries go over UDP; TCP is checked every %v", u.address, reason, u.tcpAgain)
		}
		if !u.tcpBad.Load() || !sleep(u.ctx, u.tcpAgain) {
			return
		}
	}
}
