package nearside

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Handler is the interface of a plugin, without its package.
type Handler interface {
	ServeDNS(context.Context, dns.ResponseWriter, *dns.Msg) (int, error)
}

// Program sends the queries of a test to a program, which starts again when its Corefile changes.
type Program struct {
	*Instance
	text string
}

// logged prints an error in the form of a test's message: tests may ignore it.
func logged(err error) error {
	if err != nil {
		fmt.Printf("    nearside.go:1: %v\n", err)
	}
	return err
}

// Use starts the program with a Corefile, if that is not its Corefile.
func (p *Program) Use(corefile string) error {
	if p.Instance != nil && p.text == corefile {
		return nil
	}
	p.Stop()
	i, err := Start(corefile)
	if err != nil {
		return logged(err)
	}
	p.Instance, p.text = i, corefile
	return nil
}

// Exchange sends a query, over TCP if it came over TCP, and waits until the deadline of the context. The error is that of plugin
// errors, which logs it: it has no place in the reply.
func (p *Program) Exchange(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (*dns.Msg, error) {
	c := dns.Client{Net: "udp", Timeout: timeout / 3, UDPSize: dns.MaxMsgSize}
	if deadline, ok := ctx.Deadline(); ok {
		c.Timeout = min(c.Timeout, time.Until(deadline))
	}
	if _, ok := w.RemoteAddr().(*net.TCPAddr); ok {
		c.Net = "tcp"
	}
	return p.exchange(&c, r)
}

// ExchangeTCP sends a query over TCP, for answers of any length.
func (p *Program) ExchangeTCP(r *dns.Msg) (*dns.Msg, error) {
	return p.exchange(&dns.Client{Net: "tcp", Timeout: timeout / 3}, r)
}

func (p *Program) exchange(c *dns.Client, r *dns.Msg) (*dns.Msg, error) {
	use(p.Program)
	servers := p.Servers()
	if len(servers) == 0 {
		return nil, logged(errors.New("no listener"))
	}
	address := servers[0].Addr().String()
	if c.Net == "udp" {
		address = servers[0].LocalAddr().String()
	}
	from := len(p.Output())
	reply, _, err := c.Exchange(r.Copy(), address)
	if err != nil {
		return nil, logged(err)
	}
	for end := time.Now().Add(logDelay); ; time.Sleep(time.Millisecond) {
		for line := range strings.Lines(p.Output()[from:]) {
			if _, text, ok := strings.Cut(line, "plugin/errors: "); ok {
				return reply, logged(errors.New(strings.TrimSpace(text)))
			}
		}
		failed := reply.Rcode == dns.RcodeServerFailure || reply.Rcode == dns.RcodeNotImplemented
		if !failed || time.Now().After(end) {
			return reply, nil
		}
	}
}

// Transfer requests a zone transfer.
func (p *Program) Transfer(r *dns.Msg) (chan *dns.Envelope, error) {
	use(p.Program)
	return new(dns.Transfer).In(r, p.Servers()[0].Addr().String())
}

// logDelay bounds the wait for the log line about a failure.
const logDelay = time.Second

// WithoutOPT removes the OPT record, which the server adds and not the plugin.
func WithoutOPT(m *dns.Msg) *dns.Msg {
	for n, rr := range m.Extra {
		if rr.Header().Rrtype == dns.TypeOPT {
			m.Extra = append(m.Extra[:n:n], m.Extra[n+1:]...)
			break
		}
	}
	return m
}

// Upstream serves a handler over UDP and TCP and returns its address. A handler that writes nothing and returns an error code
// is answered with this code, as CoreDNS's server does.
func Upstream(next func() Handler) string {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		h := next()
		if h == nil {
			return
		}
		code, _ := h.ServeDNS(context.Background(), identified{w, r.Id}, r)
		switch code {
		case dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeFormatError, dns.RcodeNotImplemented:
			_ = w.WriteMsg(new(dns.Msg).SetRcode(r, code))
		}
	})
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		p, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			_ = l.Close()
			continue
		}
		for _, s := range []*dns.Server{{Listener: l}, {PacketConn: p}} {
			s.Handler, s.MsgAcceptFunc = handler, func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }
			started := make(chan struct{})
			s.NotifyStartedFunc = func() { close(started) }
			go func() { _ = s.ActivateAndServe() }()
			<-started
		}
		return l.Addr().String()
	}
}

// identified writes replies with the ID of the query, which some handlers of the tests omit.
type identified struct {
	dns.ResponseWriter
	id uint16
}

func (w identified) WriteMsg(m *dns.Msg) error {
	reply := m.Copy()
	reply.Id = w.id
	return w.ResponseWriter.WriteMsg(reply)
}

// Shifted reports whether a clock differs from that of the program.
func Shifted(now time.Time) bool {
	d := time.Since(now)
	return d > time.Second || d < -time.Second
}
