package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin/pkg/proxy"
	protocols "github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// upstream is a server that queries are forwarded to.
type upstream struct {
	endpoint
	c *config

	stream transport.Carrier    // TCP, TLS, HTTPS or QUIC
	pool   *transport.Pool      // stream, if it is TCP or TLS
	udp    *transport.Datagrams // nil if the endpoint says another protocol
	proxy  *proxy.Proxy         // of HTTPS and QUIC
	took   durations

	health
}

// newUpstream returns an upstream, to which no connection is made before the first query.
func newUpstream(c *config, e endpoint) *upstream {
	u := &upstream{endpoint: e, c: c, took: durations{to: e.address}}
	u.life, u.die = context.WithCancel(context.Background())
	u.tcpAgain = tcpPause
	used.begin(e.address)
	switch e.protocol {
	case protocols.HTTPS, protocols.QUIC:
		u.carryByProxy()
	case protocols.TLS:
		u.carryByPool(u.dialTLS(u.tlsConfig()))
	default:
		u.carryByPool(u.dialTCP)
		u.udp = &transport.Datagrams{
			Address: e.address, Source: c.source, Expire: c.expire, MaxAge: c.maxAge, MaxIdle: c.maxIdle,
			Metrics: carrierMetrics(e.address, protoUDP),
		}
	}
	return u
}

// A connection that many queries share would keep them at one of the servers that may be behind an address,
// as behind that of a Service. It is replaced after some time between these, which the Corefile may say.
const (
	minAge = time.Minute
	maxAge = 3 * time.Minute
)

func (u *upstream) carryByPool(dial func(context.Context) (net.Conn, error)) {
	age := minAge + rand.N(maxAge-minAge) // #nosec G404 -- not all at the same time
	u.pool = transport.NewPool(transport.Config{
		Dial: dial, MaxInFlight: u.c.maxInFlight, MaxConnections: u.c.maxConnections,
		MaxIdle: u.c.maxIdle, Expire: u.c.expire, MaxAge: cmp.Or(u.c.maxAge, age),
		Metrics: carrierMetrics(u.address, u.streamProto()),
		Log:     func(predicate string) { log.Infof("Upstream %s %s", u.address, predicate) },
	})
	u.stream = u.pool
}

func (u *upstream) dialTCP(ctx context.Context) (net.Conn, error) {
	return transport.Dialer("tcp", u.c.source).DialContext(ctx, "tcp", u.address)
}

func (u *upstream) dialTLS(config *tls.Config) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		plain, err := u.dialTCP(ctx)
		if err != nil {
			return nil, err
		}
		secure := tls.Client(plain, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // the handshake has failed, which is said
			return nil, fmt.Errorf("TLS: %w", err)
		}
		return secure, nil
	}
}

// tlsConfig returns the stanza's, for the name that the server's certificate has to have.
func (u *upstream) tlsConfig() *tls.Config {
	config := u.c.tls.Clone()
	switch {
	case u.c.tlsServerName != "":
		config.ServerName = u.c.tlsServerName
	case u.serverName != "":
		config.ServerName = u.serverName
	}
	if config.ServerName == "" && u.protocol == protocols.TLS {
		if host, _, err := net.SplitHostPort(u.address); err == nil {
			config.ServerName, _, _ = strings.Cut(host, "%")
		}
	}
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	return config
}

// streamProto returns the label proto of what is not UDP.
func (u *upstream) streamProto() string {
	switch u.protocol {
	case protocols.DNS:
		return protoTCP
	case protocols.TLS:
		return protoTLS
	}
	return u.protocol
}

const (
	// httpsConnections bounds the connections to a server. With HTTP/2 one takes many queries, but many may
	// come before it is made.
	httpsConnections = 16
	// httpsSilence is how long a connection with HTTP/2 may say nothing before it is asked whether it lives, and
	// then before it is given up.
	httpsSilence = time.Second
)

// carryByProxy uses what CoreDNS has for DNS over HTTPS and QUIC. How long a query may take is the query's
// deadline.
func (u *upstream) carryByProxy() {
	u.proxy = proxy.NewProxy(pluginName, u.address, u.protocol)
	carrier := &transport.Func{Exchange: u.exchangeByProxy, Closed: func() {}}
	config := u.tlsConfig()
	if way, ok := http.DefaultTransport.(*http.Transport); ok && u.protocol == protocols.HTTPS {
		way = way.Clone()
		way.IdleConnTimeout = max(u.c.expire, time.Millisecond) // 0 is for ever
		way.MaxConnsPerHost = httpsConnections
		way.HTTP2 = &http.HTTP2Config{SendPingTimeout: httpsSilence, PingTimeout: httpsSilence}
		u.proxy.SetHTTPClient(&http.Client{Transport: way})
		u.proxy.SetDOHRequestOptions(u.c.dohMethod)
		u.proxy.SetDOHHost(config.ServerName)
		carrier.Closed = way.CloseIdleConnections
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
		u.proxy.Start(u.c.checkEvery)                                         // of which only the closing of idle connections is used
		carrier.Closed = func() { time.AfterFunc(u.c.timeout, u.proxy.Stop) } // it ends queries on their way
	}
	u.stream = carrier
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
		if err == proxy.ErrCachedClosed && ctx.Err() == nil { //nolint:errorlint // it is returned as it is
			continue
		}
		if err != nil {
			return nil, err
		}
		if reason := misfit(m, reply); reason != "" {
			droppedAnswers.WithLabelValues(u.address, u.protocol, reason).Inc()
			return nil, transport.ErrWrongAnswer
		}
		return reply.Pack()
	}
}

// misfit returns why a reply is none to a query, as the label reason says it, or nothing. What counts is
// what package transport goes by.
func misfit(query, reply *dns.Msg) string {
	if !reply.Response || reply.Opcode != query.Opcode {
		return droppedMalformed
	}
	if len(reply.Question) == 0 {
		switch reply.Rcode {
		case dns.RcodeFormatError, dns.RcodeServerFailure, dns.RcodeNotImplemented, dns.RcodeRefused:
			return ""
		}
		return droppedQuestion
	}
	is, want := reply.Question[0], query.Question[0]
	switch {
	case len(reply.Question) > 1, is.Qtype != want.Qtype, is.Qclass != want.Qclass, dns.CanonicalName(is.Name) != dns.CanonicalName(want.Name):
		return droppedQuestion
	case is.Name != want.Name:
		return droppedCase
	}
	return ""
}

// stop ends checks, and connections once nobody waits for an answer.
func (u *upstream) stop() {
	u.stopOnce.Do(func() {
		u.die()
		used.end(u.address)
		u.stream.Close()
		if u.udp != nil {
			u.udp.Close()
		}
	})
}

// observe counts an answer.
func (u *upstream) observe(rcode int, took time.Duration) {
	if u.proxy == nil { // which does it itself
		u.took.of(rcode).Observe(took.Seconds())
	}
}
