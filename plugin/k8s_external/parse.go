package external

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

const (
	defaultApex = "dns"
	defaultTTL  = 5    // seconds
	maxTTL      = 3600 // seconds
)

func parse(c *caddy.Controller) (*External, error) { return corefile.Once(c, parseBlock) }

func parseBlock(c *caddy.Controller) (*External, error) {
	start := corefile.At(c)
	e := &External{apex: defaultApex, ttl: defaultTTL}
	args := c.RemainingArgs()
	e.Zones = plugin.OriginsFromArgsOrServerBlock(args, c.ServerBlockKeys)
	if len(e.Zones) == 0 {
		return nil, start.Errorf("no valid zone in %q: want one such as example.org", args)
	}
	_, err := options.Parse(c, e)
	return e, err
}

var options = corefile.Options[*External]{
	"apex":        {Min: 1, Max: 1, Form: "a name below the zone such as dns", Parse: parseApex},
	"ttl":         {Min: 1, Max: 1, Form: "seconds, 0 to 3600", Parse: parseTTL},
	"headless":    {Form: "no argument", Parse: func(e *External, _ []string) error { e.headless = true; return nil }},
	"fallthrough": {Max: -1, Form: "zones, or none for all", Parse: func(e *External, args []string) error { e.Fall.SetZonesFromArgs(args); return nil }},
}

func parseApex(e *External, args []string) error {
	e.apex = strings.ToLower(strings.TrimSuffix(args[0], "."))
	if _, ok := dns.IsDomainName(e.apex); !ok || e.apex == "" {
		return fmt.Errorf("%q", args[0])
	}
	return nil
}

func parseTTL(e *External, args []string) error {
	t, err := strconv.Atoi(args[0])
	if err != nil || t < 0 || t > maxTTL {
		return fmt.Errorf("%q", args[0])
	}
	e.ttl = uint32(t) // #nosec G115 -- at most 3600
	return nil
}
