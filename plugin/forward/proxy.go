package forward

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/coredns/coredns/plugin/pkg/proxy"
	protocols "github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

const (
	// httpsConnections bounds the connections to a server. One HTTP/2 connection carries many queries, but many may
	// arrive before it is established.
	httpsConnections = 16
	// httpsSilence is the time without data after which an HTTP/2 connection is sent a ping, and the time to answer it.
	httpsSilence = time.Second
)

// carryByProxy uses CoreDNS's package proxy for DNS over HTTPS and QUIC.
func (u *upstream) carryByProxy() {
	u.proxy = proxy.NewProxy(pluginName, u.address, u.protocol)
	carrier := &transport.Func{Exchange: u.exchangeByProxy, Closed: func() {}}
	config := u.tlsConfig()
	if standard, ok := http.DefaultTransport.(*http.Transport); ok && u.protocol == protocols.HTTPS {
		client := standard.Clone()
		client.IdleConnTimeout = max(u.c.expire, time.Millisecond) // 0 is no limit
		client.MaxConnsPerHost = httpsConnections
		client.HTTP2 = &http.HTTP2Config{SendPingTimeout: httpsSilence, PingTimeout: httpsSilence}
		web := &http.Client{Transport: client}
		u.proxy.SetHTTPClient(web)
		defer func() { web.Transport = successful{client} }() // package proxy configures an http.Transport
		u.proxy.SetDOHRequestOptions(u.c.dohMethod)
		u.proxy.SetDOHHost(config.ServerName)
		carrier.Closed = client.CloseIdleConnections
	}
	u.proxy.SetTLSConfig(config)
	u.proxy.SetExpire(u.c.expire)
	u.proxy.SetMaxAge(u.c.maxAge)
	u.proxy.SetMaxIdleConns(u.c.maxIdle)
	u.proxy.SetReadTimeout(u.c.timeout)
	if u.c.source != nil {
		u.proxy.SetLocalAddress(u.c.source)
	}
	if u.protocol == protocols.QUIC {
		u.proxy.Start(u.c.checkEvery)                                         // for closing idle connections
		carrier.Closed = func() { time.AfterFunc(u.c.timeout, u.proxy.Stop) } // Stop ends queries in flight
	}
	u.stream = carrier
}

// successful returns an error for a reply with an HTTP error, whose body is no DNS message (RFC 8484 section 4.2.1). Package proxy
// does not read the status.
type successful struct{ http.RoundTripper }

func (s successful) RoundTrip(r *http.Request) (*http.Response, error) {
	reply, err := s.RoundTripper.RoundTrip(r)
	if err == nil && reply.StatusCode >= http.StatusBadRequest {
		_ = reply.Body.Close() // it is not read
		return nil, fmt.Errorf("HTTP status %s", reply.Status)
	}
	return reply, err
}

// exchangeByProxy implements transport.Func's Exchange.
func (u *upstream) exchangeByProxy(ctx context.Context, query []byte) ([]byte, error) {
	m := new(dns.Msg)
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	state := request.Request{Req: m}
	for {
		reply, _, _, err := u.proxy.Connect(ctx, state, proxy.Options{ForceTCP: true})
		if err == proxy.ErrCachedClosed && ctx.Err() == nil { //nolint:errorlint // it is returned unwrapped
			continue
		}
		if err != nil {
			return nil, err
		}
		packed, err := reply.Pack()
		if err != nil {
			return nil, err
		}
		switch reason := transport.Check(query, packed); reason {
		case "":
			return packed, nil
		case transport.WrongCase:
			fallbacks.WithLabelValues(u.address, fallbackCase).Inc()
			reply.Question = m.Question
			return reply.Pack()
		default:
			droppedAnswers.WithLabelValues(u.address, u.protocol, reason).Inc()
			return nil, transport.ErrWrongAnswer
		}
	}
}
