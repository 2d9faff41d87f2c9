package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin/pkg/proxy"
	protocols "github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// upstream is a server that queries are forwarded to.
type upstream struct {
	endpoint
	c *config

	stream transport.Carrier    // TCP, TLS, HTTPS or QUIC
	pool   *transport.Pool      // stream over TCP and TLS
	udp    *transport.Datagrams // nil if the endpoint has another protocol
	proxy  *proxy.Proxy         // of HTTPS and QUIC
	took   durations
	lost   *transport.LostSessions // of all upstreams of the stanza

	health
}

// newUpstream returns an upstream. It opens no connection before the first query.
func newUpstream(c *config, lost *transport.LostSessions, e endpoint) *upstream {
	u := &upstream{endpoint: e, c: c, lost: lost, took: durations{to: e.address}}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	u.tcpAgain, u.optionsAgain = tcpPause, unnamedFor
	used.begin(e.address, u.isCoherent())
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
	if u.isCoherent() {
		ages.add(u)
	}
	return u
}

// minAge and maxAge bound the random age of connections without max_age: one address, such as that of a Service, may
// stand for several servers.
const (
	minAge = time.Minute
	maxAge = 3 * time.Minute
	// sessionAge multiplies that age for a connection whose session has answers: they fall back to their TTL when it ends.
	sessionAge = 10
)

func (u *upstream) carryByPool(dial func(context.Context) (net.Conn, error)) {
	age := minAge + rand.N(maxAge-minAge) // #nosec G404 -- it only spreads reconnects
	u.pool = transport.NewPool(transport.Config{
		Coherence: u.coherence(cmp.Or(u.c.maxAge, sessionAge*age)),
		Dial:      dial, MaxInFlight: u.c.maxInFlight, MaxConnections: u.c.maxConnections,
		MaxIdle: u.c.maxIdle, Expire: u.c.expire, MaxAge: cmp.Or(u.c.maxAge, age),
		Metrics:        carrierMetrics(u.address, u.streamProto()),
		CheckKeepAlive: u.checkKeepAlive,
		Log:            func(predicate string) { log.Infof("Upstream %s %s", u.address, predicate) },
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
			_ = plain.Close() // the error of the handshake is reported
			return nil, fmt.Errorf("TLS: %w", err)
		}
		return secure, nil
	}
}

// tlsConfig returns the stanza's configuration with the server name of the upstream.
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

// streamProto returns the label proto of the stream.
func (u *upstream) streamProto() string {
	switch u.protocol {
	case protocols.DNS:
		return protoTCP
	case protocols.TLS:
		return protoTLS
	}
	return u.protocol
}

// stop ends checks, and closes connections after the queries in flight.
func (u *upstream) stop() {
	u.stopOnce.Do(func() {
		u.cancel()
		ages.remove(u)
		used.end(u.address, u.isCoherent())
		u.stream.Close()
		if u.udp != nil {
			u.udp.Close()
		}
	})
}

// observe counts an answer.
func (u *upstream) observe(rcode int, took time.Duration) {
	if u.proxy == nil { // CoreDNS's package proxy counts its answers itself
		u.took.forCode(rcode).Observe(took.Seconds())
	}
}
