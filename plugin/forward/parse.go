package forward

import (
	"crypto/tls"
	"net/http"
	"slices"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	scheme "github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/internal/nodefacts"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// Defaults and limits of the options.
const (
	defaultTimeout        = 4800 * time.Millisecond // clients wait for 5 s (resolv.conf(5), timeout)
	defaultReadTimeout    = 2 * time.Second
	defaultExpire         = 10 * time.Second
	defaultCheckEvery     = 500 * time.Millisecond
	defaultMaxFails       = 2
	defaultMaxInFlight    = 1000
	defaultMaxConnections = 32
	maxMaxInFlight        = 65000 // an id has 16 bits, and some must be free
	maxMaxConnections     = 64
	maxUpstreams          = nodefacts.MaxUpstreams
)

// defaults returns a stanza without options.
func defaults(at corefile.Position) config {
	return config{
		at:             at,
		timeout:        defaultTimeout,
		readTimeout:    defaultReadTimeout,
		expire:         defaultExpire,
		maxInFlight:    defaultMaxInFlight,
		maxConnections: defaultMaxConnections,
		maxFails:       defaultMaxFails,
		attempts:       unset,
		checkEvery:     defaultCheckEvery,
		checkName:      ".",
		checkRecursion: true,
		policy:         random{},
		tls:            &tls.Config{MinVersion: tls.VersionTLS12},
		dohMethod:      http.MethodPost,
	}
}

// parse reads the stanzas of a server block, in their order, and the files that they name. It opens no socket and looks up
// no name.
func parse(c *caddy.Controller) (all []config, err error) {
	for c.Next() {
		s := stanza{config: defaults(corefile.At(c)), root: dnsserver.GetConfig(c).Root}
		s.blockZones = append(s.blockZones, plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys)...)
		if err := s.parse(c); err != nil {
			return nil, err
		}
		all = append(all, s.config)
	}
	return all, nil
}

// stanza is a stanza while it is parsed.
type stanza struct {
	config
	root string // the folder of relative paths
	seen map[string]corefile.Position
}

const stanzaForm = "a zone and upstreams: FROM TO..."

func (s *stanza) parse(c *caddy.Controller) error {
	var from string
	if !c.Args(&from) {
		return s.at.Errorf("invalid forward: want %s", stanzaForm)
	}
	zones := plugin.Host(from).NormalizeExact()
	if len(zones) == 0 {
		return s.at.Errorf("invalid forward %q: invalid zone: want %s", from, stanzaForm)
	}
	s.from = zones[0]
	if len(zones) > 1 {
		log.Warningf("%s is several zones, of which only %s is forwarded: write a stanza for each", from, s.from)
	}
	to := c.RemainingArgs()
	if len(to) == 0 {
		return s.at.Errorf("invalid forward %q: missing upstream: want %s", from, stanzaForm)
	}
	seen, err := options.Parse(c, s)
	if err != nil {
		return err
	}
	s.seen = seen
	if err := s.check(); err != nil {
		return err
	}
	if err := s.parseTargets(s.useNodeFacts(to)); err != nil {
		return err
	}
	s.forceTCP = s.forceTCP || s.coherent // sessions are on TCP connections
	if s.toClusterDNS = s.toClusterDNS || s.caller != nil || s.coherent; s.toClusterDNS && s.private != forwardPrivate {
		return s.seen["private_names"].Errorf("invalid private_names: the upstreams are cluster DNS: want upstreams outside of the cluster")
	}
	return nil
}

// useNodeFacts sets the defaults that the process has for this stanza, unless its options set them, and returns its upstreams.
func (s *stanza) useNodeFacts(to []string) []string {
	facts := nodefacts.For(s.at.File)
	defaults := facts.Forward[s.at.Line]
	if defaults.Servers != nil {
		to = defaults.Servers
	}
	if defaults.TCP && !s.choosesTransport(to) {
		s.forceTCP, s.fallbackUDP = true, true
	}
	s.toClusterDNS = defaults.ClusterDNS
	if defaults.Caller && s.caller == nil {
		s.caller, _ = newCaller(facts.Node, facts.Zone) // nodecache checks both at start
	}
	return to
}

// choosesTransport reports whether an option or an upstream selects the transport.
func (s *stanza) choosesTransport(to []string) bool {
	for _, option := range []string{"force_tcp", "prefer_udp", "fallback", "tls"} {
		if _, given := s.seen[option]; given {
			return true
		}
	}
	return slices.ContainsFunc(to, func(text string) bool {
		protocol, _ := scheme.Transport(text)
		return protocol != transport.DNS
	})
}

// check returns an error for options that contradict each other.
func (s *stanza) check() error {
	if s.maxAge > 0 && s.maxAge < s.expire {
		return s.seen["max_age"].Errorf("invalid max_age %q: want 0, or expire (%s) or more", s.maxAge, s.expire)
	}
	if s.hedge >= s.timeout {
		return s.seen["hedge"].Errorf("invalid hedge %q: want less than timeout (%s)", s.hedge, s.timeout)
	}
	if s.coherent && s.preferUDP {
		return s.seen["coherent"].Errorf("invalid coherent: prefer_udp in the same stanza: want TCP, over which coherent forwards all queries")
	}
	if s.coherent && s.maxInFlight == 1 {
		return s.seen["max_in_flight"].Errorf(`invalid max_in_flight "1": want a number of 2 to %d with coherent, which opens a session on each connection`, maxMaxInFlight)
	}
	if s.tlsServerName != "" {
		s.tls.ServerName = s.tlsServerName
	}
	return nil
}
