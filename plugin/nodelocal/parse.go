package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/parse"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

const (
	defaultInterface = "nodelocaldns"
	defaultInterval  = time.Minute
	minInterval      = time.Second

	// maxInterface is the longest name of an interface, in bytes.
	maxInterface = 15
	// maxAddresses bounds the addresses: each has rules and a query of its own.
	maxAddresses = 16
)

// backend is a means to set rules in the kernel.
type backend string

const (
	backendAuto     backend = "auto"
	backendNFTables backend = "nftables"
	backendIPTables backend = "iptables"
	backendNone     backend = "none"
)

// config is the directive.
type config struct {
	rules.Config
	setupInterface, setupRules bool
	backend                    backend
	interval                   time.Duration
	keep                       bool
	questionFrom               []netip.Addr  // the sources of self-queries; with nil they use lo
	zone                       string        // of the server block
	context                    caddy.Context // of the Corefile, distinguishes its nodes from those before a reload
}

func newConfig() config {
	return config{
		Config:         rules.Config{Interface: defaultInterface},
		setupInterface: true,
		setupRules:     true,
		backend:        backendAuto,
		interval:       defaultInterval,
		questionFrom:   defaultQuestionFrom(),
	}
}

// defaultQuestionFrom returns addresses that no host has and no network routes: the IPv4 dummy address (RFC 7600) and one
// of the IPv6 dummy prefix (RFC 9780).
func defaultQuestionFrom() []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 0, 8}), netip.AddrFrom16([16]byte{0: 0x01, 7: 0x01, 15: 0x08})}
}

var options = corefile.Options[*config]{
	"interface": {Min: 1, Max: 1, Form: fmt.Sprintf("the name of the interface, at most %d bytes", maxInterface), Parse: parseInterface},
	"setup":     {Min: 1, Max: 2, Form: "interface and rules, one of them, or none", Parse: parseSetup},
	"backend":   {Min: 1, Max: 1, Form: "nftables, iptables, none or auto", Parse: parseBackend},
	"interval":  {Min: 1, Max: 1, Form: "a duration of at least 1s", Parse: parseInterval},
	"keep":      {Form: "nothing", Parse: func(c *config, _ []string) error { c.keep = true; return nil }},
	"health":    {Min: 1, Max: 1, Form: "a port, 1-65535", Parse: parseHealth},
	"question":  {Min: 1, Max: 3, Form: "lo, or from and addresses, at most one per family", Parse: parseQuestion},
	"fallback":  {Min: 1, Max: -1, Form: "addresses, at most one per family, and after except those that kube-proxy knows", Parse: parseFallback},
}

func parseConfig(c *caddy.Controller) (config, error) { return corefile.Once(c, parseBlock) }

func parseBlock(c *caddy.Controller) (cfg config, err error) {
	cfg = newConfig()
	if cfg.Addresses, err = parseAddresses(c.RemainingArgs()); err != nil {
		return cfg, corefile.At(c).Errorf("%v", err)
	}
	if _, err := options.Parse(c, &cfg); err != nil {
		return cfg, err
	}
	if cfg.Port, err = port(c); err != nil {
		return cfg, corefile.At(c).Errorf("%v", err)
	}
	for _, a := range cfg.Addresses {
		if cfg.queriesItselfByPair() && (slices.Contains(cfg.questionFrom, a) || a == rules.QuestionTarget(a)) {
			return cfg, corefile.At(c).Errorf("invalid address %s: the server's queries to itself use it; see the option question", a)
		}
	}
	cfg.zone = plugin.OriginsFromArgsOrServerBlock(nil, c.ServerBlockKeys)[0]
	return cfg, nil
}

// queriesItselfByPair reports whether the server's queries to itself may use a pair of devices.
func (c *config) queriesItselfByPair() bool {
	return c.setupInterface && c.setupRules && c.backend != backendNone && c.backend != backendIPTables && len(c.questionFrom) > 0
}

// port returns the port of the server block, which must be plain DNS.
func port(c *caddy.Controller) (uint16, error) {
	protocol, key := parse.Transport(c.ServerBlockKeys[0])
	if protocol != transport.DNS {
		return 0, fmt.Errorf("invalid server block %q: want plain DNS, which pods query", key)
	}
	text := dnsserver.GetConfig(c).Port
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("invalid port %q of the server block %q: want 1-65535", text, key)
	}
	return uint16(n), nil
}

func parseAddresses(args []string) (all []netip.Addr, err error) {
	if len(args) == 0 {
		return nil, errors.New("missing address: want those that pods query, such as 169.254.20.10")
	}
	if len(args) > maxAddresses {
		return nil, fmt.Errorf("%d addresses: want 1-%d", len(args), maxAddresses)
	}
	for _, text := range args {
		a, err := parseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("invalid address %w", err)
		}
		if slices.Contains(all, a) {
			return nil, fmt.Errorf("duplicate address %s", a)
		}
		all = append(all, a)
	}
	return all, nil
}

// parseAddress parses an address that an interface of the node may have and that pods can query.
func parseAddress(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q: not an IP address", text)
	case a.Zone() != "":
		return a, fmt.Errorf("%q: address with a zone", a)
	case a.Is4In6(), a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return a, fmt.Errorf("%q: not an address that pods can query", a)
	}
	return a, nil
}

func parseInterface(c *config, args []string) error {
	name := args[0]
	if len(name) > maxInterface || name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/: \t") || name == "lo" {
		return fmt.Errorf("%q", name)
	}
	c.Interface = name
	return nil
}

func parseSetup(c *config, args []string) error {
	c.setupInterface, c.setupRules = false, false
	if len(args) == 1 && args[0] == "none" {
		return nil
	}
	parts := map[string]*bool{"interface": &c.setupInterface, "rules": &c.setupRules}
	for _, what := range args {
		switch part := parts[what]; {
		case part == nil:
			return fmt.Errorf("%q", what)
		case *part:
			return fmt.Errorf("%q: duplicate", what)
		default:
			*part = true
		}
	}
	return nil
}

func parseBackend(c *config, args []string) error {
	switch b := backend(args[0]); b {
	case backendAuto, backendNFTables, backendIPTables, backendNone:
		c.backend = b
		return nil
	}
	return fmt.Errorf("%q", args[0])
}

func parseInterval(c *config, args []string) (err error) {
	if c.interval, err = time.ParseDuration(args[0]); err != nil || c.interval < minInterval {
		return fmt.Errorf("%q", args[0])
	}
	return nil
}

func parseHealth(c *config, args []string) error {
	n, err := strconv.ParseUint(args[0], 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q", args[0])
	}
	c.Health = uint16(n)
	return nil
}

// addOnePerFamily adds addresses to others, at most one of each family.
func addOnePerFamily(all []netip.Addr, args []string) ([]netip.Addr, error) {
	for _, text := range args {
		a, err := parseAddress(text)
		if err == nil && hasFamily(all, a) {
			err = fmt.Errorf("%q: second address of its family", a)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// hasFamily reports whether one of the addresses is of the family of a.
func hasFamily(all []netip.Addr, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(b netip.Addr) bool { return b.Is4() == a.Is4() })
}

// parseQuestion replaces the default source of each family of the arguments.
func parseQuestion(c *config, args []string) error {
	if len(args) == 1 && args[0] == "lo" {
		c.questionFrom = nil
		return nil
	}
	if args[0] != "from" || len(args) == 1 {
		return errors.New(corefile.Quote(args))
	}
	from, err := addOnePerFamily(nil, args[1:])
	if err != nil {
		return err
	}
	for _, a := range from {
		if a.Is6() && a.IsLinkLocalUnicast() || a == rules.QuestionTarget(a) {
			return fmt.Errorf("%q: link-local, or the address that is queried", a)
		}
	}
	defaults := slices.DeleteFunc(defaultQuestionFrom(), func(a netip.Addr) bool { return hasFamily(from, a) })
	c.questionFrom = append(from, defaults...)
	return nil
}

func parseFallback(c *config, args []string) (err error) {
	if i := slices.Index(args, "except"); i >= 0 {
		if i == 0 || i == len(args)-1 {
			return fmt.Errorf("%q: not between addresses", "except")
		}
		for _, text := range args[i+1:] {
			a, err := parseAddress(text)
			if err == nil && !slices.Contains(c.Addresses, a) {
				err = fmt.Errorf("%q: not one of the node-local addresses", a)
			}
			if err != nil {
				return err
			}
			c.Services = append(c.Services, a)
		}
		args = args[:i]
	}
	c.Fallback, err = addOnePerFamily(c.Fallback, args)
	return err
}
