package forward

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	pkgtls "github.com/coredns/coredns/plugin/pkg/tls"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

const (
	durationForm = "a duration such as 10s"
	numberForm   = "a number, 0 or more"
	rcodeForm    = "response codes such as SERVFAIL"
	noForm       = "no argument"
)

// options are those of CoreDNS's forward, which accepts repeated ones, and those of nearside (Once). After an option with
// exactly one argument, another may follow on the same line, as in CoreDNS.
var options = corefile.Options[*stanza]{
	"except":                           {Min: 1, Max: -1, Form: "zones", Parse: parseExcept},
	"force_tcp":                        {Form: noForm, Parse: func(s *stanza, _ []string) error { s.forceTCP = true; return nil }},
	"prefer_udp":                       {Form: noForm, Parse: func(s *stanza, _ []string) error { s.preferUDP = true; return nil }},
	"fallback":                         {Min: 1, Max: 1, Once: true, Shared: true, Form: "udp", Parse: parseFallback},
	"caller":                           {Min: 1, Max: 2, Once: true, Form: "the name of a node, and optionally its zone: NODE [ZONE]", Parse: parseCaller},
	"coherent":                         {Once: true, Form: noForm, Parse: func(s *stanza, _ []string) error { s.coherent = true; return nil }},
	"timeout":                          {Min: 1, Max: 1, Once: true, Shared: true, Form: "a duration of more than 0, such as 5s", Parse: positive(func(s *stanza) *time.Duration { return &s.timeout })},
	"read_timeout":                     {Min: 1, Max: 1, Shared: true, Form: "a duration of more than 0, such as 2s", Parse: positive(func(s *stanza) *time.Duration { return &s.readTimeout })},
	"hedge":                            {Min: 1, Max: 1, Once: true, Shared: true, Form: "a duration less than timeout, such as 200ms, or 0 for never", Parse: duration(func(s *stanza) *time.Duration { return &s.hedge })},
	"expire":                           {Min: 1, Max: 1, Shared: true, Form: durationForm, Parse: duration(func(s *stanza) *time.Duration { return &s.expire })},
	"max_age":                          {Min: 1, Max: 1, Shared: true, Form: durationForm, Parse: duration(func(s *stanza) *time.Duration { return &s.maxAge })},
	"max_idle_conns":                   {Min: 1, Max: 1, Shared: true, Form: numberForm, Parse: between(0, math.MaxInt, func(s *stanza) *int { return &s.maxIdle })},
	"max_in_flight":                    {Min: 1, Max: 1, Once: true, Shared: true, Form: "a number of 1 to 65000", Parse: between(1, maxMaxInFlight, func(s *stanza) *int { return &s.maxInFlight })},
	"max_connections":                  {Min: 1, Max: 1, Once: true, Shared: true, Form: "a number of 1 to 64", Parse: between(1, maxMaxConnections, func(s *stanza) *int { return &s.maxConnections })},
	"max_fails":                        {Min: 1, Max: 1, Shared: true, Form: numberForm, Parse: parseMaxFails},
	"max_connect_attempts":             {Min: 1, Max: 1, Shared: true, Form: numberForm, Parse: parseAttempts},
	"max_concurrent":                   {Min: 1, Max: 1, Shared: true, Form: numberForm, Parse: between(0, math.MaxInt, func(s *stanza) *int { return &s.maxConcurrent })},
	"health_check":                     {Min: 1, Max: -1, Form: "a duration, and optionally no_rec and a name: DURATION [no_rec] [domain FQDN]", Parse: parseHealthCheck},
	"private_names":                    {Min: 1, Max: 1, Once: true, Shared: true, Form: "refuse, nxdomain or forward", Parse: parsePrivate},
	"policy":                           {Min: 1, Max: 1, Shared: true, Form: "random, round_robin or sequential", Parse: parsePolicy},
	"next":                             {Min: 1, Max: -1, Form: rcodeForm, Parse: parseNext},
	"next_on_nodata":                   {Form: noForm, Parse: func(s *stanza, _ []string) error { s.nextOnNodata = true; return nil }},
	"failover":                         {Min: 1, Max: -1, Form: rcodeForm + ", but not NOERROR", Parse: parseFailover},
	"failfast_all_unhealthy_upstreams": {Form: noForm, Parse: func(s *stanza, _ []string) error { s.failfast = true; return nil }},
	"tls":                              {Max: 3, Form: "files: [CA], or CERT KEY [CA]", Parse: parseTLS},
	"tls_servername":                   {Min: 1, Max: 1, Shared: true, Form: "a name", Parse: func(s *stanza, args []string) error { s.tlsServerName = args[0]; return nil }},
	"doh_method":                       {Min: 1, Max: 1, Shared: true, Form: "GET or POST", Parse: parseMethod},
	"source_address":                   {Min: 1, Max: 1, Shared: true, Form: "an IP address", Parse: parseSource},
	"resolver":                         {Min: 1, Max: -1, Form: "IP addresses, each optionally with a port", Parse: parseResolver},
}

func parseExcept(s *stanza, args []string) error {
	for _, arg := range args {
		zones := plugin.Host(arg).NormalizeExact()
		if len(zones) == 0 {
			log.Warningf("%s:%d: except: %q is no zone, and has no effect", s.at.File, s.at.Line, arg)
		}
		s.except = append(s.except, zones...)
	}
	return nil
}

func parseFallback(s *stanza, args []string) error {
	if args[0] != "udp" {
		return fmt.Errorf("%q", args[0])
	}
	s.fallbackUDP = true
	return nil
}

func parseCaller(s *stanza, args []string) error {
	zone := ""
	if len(args) > 1 {
		zone = args[1]
	}
	switch option, ok := newCaller(args[0], zone); {
	case len(args[0]) == 0 || len(args[0]) > caller.MaxNode:
		return fmt.Errorf("%q: not 1-%d bytes", args[0], caller.MaxNode)
	case !ok:
		return fmt.Errorf("%q: not 1-%d bytes", zone, caller.MaxZone)
	default:
		s.caller = option
		return nil
	}
}

// duration returns a parser for a duration of 0 or more.
func duration(field func(*stanza) *time.Duration) func(*stanza, []string) error {
	return func(s *stanza, args []string) error {
		d, err := time.ParseDuration(args[0])
		if err != nil || d < 0 {
			return fmt.Errorf("%q", args[0])
		}
		*field(s) = d
		return nil
	}
}

// positive returns a parser for a duration of more than 0.
func positive(field func(*stanza) *time.Duration) func(*stanza, []string) error {
	return func(s *stanza, args []string) error {
		if err := duration(field)(s, args); err != nil {
			return err
		}
		if *field(s) == 0 {
			return fmt.Errorf("%q", args[0])
		}
		return nil
	}
}

// between returns a parser for a number in a range.
func between(minimum, maximum int, field func(*stanza) *int) func(*stanza, []string) error {
	return func(s *stanza, args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < minimum || n > maximum {
			return fmt.Errorf("%q", args[0])
		}
		*field(s) = n
		return nil
	}
}

// number32 parses an unsigned number of 32 bits.
func number32(arg string) (uint32, error) {
	n, err := strconv.ParseUint(arg, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("%q: out of range 0-%d", arg, uint32(math.MaxUint32))
	}
	return uint32(n), nil
}

func parseMaxFails(s *stanza, args []string) (err error) {
	s.maxFails, err = number32(args[0])
	return err
}

func parseAttempts(s *stanza, args []string) error {
	n, err := number32(args[0])
	s.attempts = int(min(n, math.MaxInt32))
	return err
}

// parseHealthCheck parses DURATION [no_rec] [domain FQDN]. A repeated option replaces all but no_rec.
func parseHealthCheck(s *stanza, args []string) error {
	if err := duration(func(s *stanza) *time.Duration { return &s.checkEvery })(s, args); err != nil {
		return err
	}
	s.checkName = "."
	for rest := args[1:]; len(rest) > 0; rest = rest[1:] {
		switch rest[0] {
		case "no_rec":
			s.checkRecursion = false
		case "domain":
			if rest = rest[1:]; len(rest) == 0 {
				return fmt.Errorf("%q: missing name", "domain")
			}
			if _, ok := dns.IsDomainName(rest[0]); !ok {
				return fmt.Errorf("%q: invalid name", rest[0])
			}
			s.checkName = plugin.Name(rest[0]).Normalize()
		default:
			return fmt.Errorf("%q: unexpected argument", rest[0])
		}
	}
	return nil
}

func parsePrivate(s *stanza, args []string) error {
	p, ok := map[string]privateNames{"forward": forwardPrivate, "refuse": refusePrivate, "nxdomain": denyPrivate}[args[0]]
	if !ok {
		return fmt.Errorf("%q", args[0])
	}
	s.private = p
	return nil
}

func parsePolicy(s *stanza, args []string) error {
	p, ok := newPolicy(args[0])
	if !ok {
		return fmt.Errorf("%q", args[0])
	}
	s.policy = p
	return nil
}

func rcodes(args []string) (all []int, err error) {
	for _, arg := range args {
		code, ok := dns.StringToRcode[strings.ToUpper(arg)]
		if !ok {
			return nil, fmt.Errorf("%q", arg)
		}
		all = append(all, code)
	}
	return all, nil
}

func parseNext(s *stanza, args []string) error {
	codes, err := rcodes(args)
	s.next = append(s.next, codes...)
	return err
}

func parseFailover(s *stanza, args []string) error {
	codes, err := rcodes(args)
	if err == nil && slices.Contains(codes, dns.RcodeSuccess) {
		err = fmt.Errorf("%q", "NOERROR")
	}
	s.failover = append(s.failover, codes...)
	return err
}

func parseTLS(s *stanza, args []string) (err error) {
	for i := range args {
		if !filepath.IsAbs(args[i]) && s.root != "" {
			args[i] = filepath.Join(s.root, args[i])
		}
	}
	if s.tls, err = pkgtls.NewTLSConfigFromArgs(args...); err != nil {
		return fmt.Errorf("%s: %w", corefile.Quote(args), err)
	}
	return nil
}

func parseMethod(s *stanza, args []string) error {
	if args[0] != http.MethodGet && args[0] != http.MethodPost {
		return fmt.Errorf("%q", args[0])
	}
	s.dohMethod = args[0]
	return nil
}

func parseSource(s *stanza, args []string) error {
	if s.source = net.ParseIP(args[0]); s.source == nil {
		return fmt.Errorf("%q", args[0])
	}
	return nil
}

// parseResolver parses addresses. A repeated option replaces them.
func parseResolver(s *stanza, args []string) error {
	s.resolver = nil
	for _, arg := range args {
		host, port, err := net.SplitHostPort(arg)
		if err != nil {
			host, port = arg, transport.Port
		}
		if net.ParseIP(host) == nil {
			return fmt.Errorf("%q: not an IP address", arg)
		}
		if port, err = portNumber(port); err != nil {
			return fmt.Errorf("%q: %w", arg, err)
		}
		s.resolver = append(s.resolver, net.JoinHostPort(host, port))
	}
	return nil
}
