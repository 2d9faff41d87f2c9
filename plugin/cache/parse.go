package cache

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wheel"
)

// Defaults and limits. TTLs are in seconds.
const (
	defaultMaxTTL    = 3600 // of answers
	defaultMaxDenial = 1800 // of denials
	defaultMinTTL    = 5
	maxTTL           = math.MaxInt32 // RFC 2181 section 8
	minCapacity      = 1024
	defaultServfail  = 5 * time.Second
	maxServfail      = 5 * time.Minute // RFC 2308 section 7.1
	defaultGap       = time.Minute
	defaultPercent   = 10
	maxRecheck       = 5 * time.Minute
	minBudget        = 1 << 20 // bytes
	defaultInterval  = time.Minute
	defaultMaxAge    = time.Hour
	maxInterval      = 24 * time.Hour
)

// options are the options of a cache block, without zones.
type options struct {
	kinds          [2]kindOptions // by store.Kind
	prefetch       prefetchOptions
	stale          staleOptions
	preferPositive bool
	servfail       time.Duration // lifetime of a failure
	keepTTL        bool
	budget         int64 // of the process in bytes, 0 if not set
	snapshot       snapshotOptions
}

// kindOptions are the options for answers or for denials.
type kindOptions struct {
	capacity       int          // entries, 0 for no limit but the budget
	maxTTL, minTTL uint32       // in seconds
	minGiven       bool         // minTTL also raises a TTL of 0
	disabled       plugin.Zones // not cached
}

// newCache returns a handler with default options.
func newCache(zones []string) *Cache {
	return &Cache{
		Zones:      zones,
		zonesLabel: strings.Join(zones, ","),
		zoneSet:    block.ZoneSet(zones),
		options: options{
			kinds: [2]kindOptions{
				store.Success: {maxTTL: defaultMaxTTL, minTTL: defaultMinTTL},
				store.Denial:  {maxTTL: defaultMaxDenial, minTTL: defaultMinTTL},
			},
			prefetch: prefetchOptions{gap: defaultGap, percent: defaultPercent},
			stale:    defaultStale,
			servfail: defaultServfail,
			snapshot: snapshotOptions{interval: defaultInterval, maxAge: defaultMaxAge},
		},
		isDispatched: func(string) bool { return true },

		store: store.Shared,
		wheel: wheel.Process,
		now:   validity.Now,
		wall:  time.Now,
	}
}

func parse(c *caddy.Controller) (*Cache, error) { return corefile.Once(c, parseBlock) }

func parseBlock(c *caddy.Controller) (*Cache, error) {
	start, args := corefile.At(c), c.RemainingArgs()
	ttl, zones, err := parseTTL(args)
	if err != nil {
		return nil, start.Errorf("invalid cache %w: want [TTL] [ZONES...]", err)
	}
	h := newCache(plugin.OriginsFromArgsOrServerBlock(zones, c.ServerBlockKeys))
	if ttl > 0 {
		h.kinds[store.Success].maxTTL, h.kinds[store.Denial].maxTTL = ttl, ttl
	}
	seen, err := parsers.Parse(c, h)
	if err != nil {
		return nil, err
	}
	if here, ok := seen["serve_stale_policy"]; ok && (seen["serve_stale"] == corefile.Position{} || h.stale.onFailure) {
		return nil, here.Errorf("serve_stale_policy requires serve_stale")
	}
	h.budgetAt, h.snapshot.at = seen["budget"], seen["snapshot"]
	if root := dnsserver.GetConfig(c).Root; h.snapshot.file != "" && !filepath.IsAbs(h.snapshot.file) {
		h.snapshot.file = filepath.Join(root, h.snapshot.file)
	}
	return h, nil
}

// parseTTL splits the arguments of the directive into the TTL, 0 if there is none, and the zones.
func parseTTL(args []string) (ttl uint32, zones []string, err error) {
	if len(args) == 0 {
		return 0, nil, nil
	}
	if _, err := strconv.Atoi(args[0]); err != nil {
		return 0, args, nil // a zone
	}
	ttl, err = seconds(args[0], 1)
	return ttl, args[1:], err
}

const kindForm = "a number of entries, and optionally TTLs in seconds: CAPACITY [TTL] [MINTTL]"

var parsers = corefile.Options[*Cache]{
	"success":            {Min: 1, Max: -1, Form: kindForm, Parse: func(h *Cache, args []string) error { return h.kinds[store.Success].parse(args) }},
	"denial":             {Min: 1, Max: -1, Form: kindForm, Parse: func(h *Cache, args []string) error { return h.kinds[store.Denial].parse(args) }},
	"prefetch":           {Min: 1, Max: 3, Form: "a number of queries, and optionally a duration and 10% to 90%: AMOUNT [[DURATION] [PERCENTAGE%]]", Parse: parsePrefetch},
	"serve_stale":        {Max: 5, Form: "off, or [DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]] | verify [VERIFY_TIMEOUT [RESPONSE_TTL [FAILURE_RECHECK]]]]", Parse: parseServeStale},
	"serve_stale_policy": {Min: 1, Max: 1, Once: true, Form: "prefer_positive", Parse: parsePolicy},
	"servfail":           {Min: 1, Max: 1, Form: "a duration of 0s to 5m", Parse: parseServfail},
	"disable":            {Min: 1, Max: -1, Form: "success or denial, and optionally zones", Parse: parseDisable},
	"keepttl":            {Form: "no argument", Parse: func(h *Cache, _ []string) error { h.keepTTL = true; return nil }},
	"snapshot":           {Min: 1, Max: 3, Once: true, Form: "a file, and optionally how often it is written (1s to 24h) and the maximum age of what is restored: FILE [INTERVAL] [MAX_AGE], with MAX_AGE not below INTERVAL", Parse: parseSnapshot},
	"budget":             {Min: 1, Max: 1, Once: true, Form: "a size of 1MiB or more, such as 32MiB, 64MB, or a number of bytes", Parse: parseBudget},
}

// seconds parses a TTL in seconds.
func seconds(arg string, lowest int) (uint32, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < lowest || n > maxTTL {
		return 0, fmt.Errorf("%q: TTL out of range %d-%d", arg, lowest, maxTTL)
	}
	return uint32(n), nil // #nosec G115 -- in range
}

// parse parses CAPACITY [TTL] [MINTTL]. CoreDNS accepts further arguments.
func (k *kindOptions) parse(args []string) (err error) {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%q", args[0])
	}
	k.capacity = max(n, minCapacity)
	if len(args) > 1 {
		if k.maxTTL, err = seconds(args[1], 1); err != nil {
			return err
		}
	}
	if len(args) > 2 {
		if k.minTTL, err = seconds(args[2], 0); err != nil {
			return err
		}
		k.minGiven = true
	}
	if len(args) > 3 {
		log.Warningf("Arguments %q after CAPACITY TTL MINTTL have no effect", args[3:])
	}
	return nil
}

func parsePrefetch(h *Cache, args []string) error {
	amount, err := strconv.Atoi(args[0])
	if err != nil || amount < 0 {
		return fmt.Errorf("%q", args[0])
	}
	h.prefetch.amount = int64(amount)
	if len(args) > 1 {
		if h.prefetch.gap, err = time.ParseDuration(args[1]); err != nil {
			return fmt.Errorf("%q", args[1])
		}
	}
	if len(args) > 2 {
		n, err := strconv.Atoi(strings.TrimSuffix(args[2], "%"))
		if err != nil || !strings.HasSuffix(args[2], "%") || n < 10 || n > 90 {
			return fmt.Errorf("%q", args[2])
		}
		h.prefetch.percent = n
	}
	return nil
}

func parseServeStale(h *Cache, args []string) (err error) {
	if len(args) > 0 && args[0] == "off" {
		if len(args) > 1 {
			return fmt.Errorf("%q: unexpected argument", args[1])
		}
		h.stale = defaultStale // for answers that have lapsed
		h.stale.maxAge = 0
		return nil
	}
	s := staleOptions{maxAge: time.Hour}
	if len(args) > 0 {
		if s.maxAge, err = duration(args[0], math.MaxInt64); err != nil {
			return err
		}
	}
	rest := args[min(len(args), 2):]
	if len(args) > 1 {
		switch strings.ToLower(args[1]) {
		case "immediate":
		case "verify":
			s.verify = true
			if len(rest) > 0 {
				if s.timeout, err = duration(rest[0], math.MaxInt64); err != nil {
					return err
				}
				rest = rest[1:]
			}
		default:
			return fmt.Errorf("%q", args[1])
		}
	}
	if err := s.parseRest(rest); err != nil {
		return err
	}
	h.stale = s
	return nil
}

// parseRest parses [RESPONSE_TTL [FAILURE_RECHECK]].
func (s *staleOptions) parseRest(args []string) (err error) {
	if len(args) > 2 {
		return fmt.Errorf("%q: unexpected argument", args[2])
	}
	if len(args) > 0 {
		ttl, err := duration(args[0], math.MaxUint32*time.Second)
		if err != nil {
			return err
		}
		if ttl%time.Second != 0 {
			return fmt.Errorf("%q: not whole seconds", args[0])
		}
		s.ttl = uint32(ttl / time.Second) // #nosec G115 -- in range
	}
	if len(args) > 1 {
		s.recheck, err = duration(args[1], maxRecheck)
	}
	return err
}

// duration parses a duration of 0 to limit.
func duration(arg string, limit time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(arg)
	switch {
	case err != nil || d < 0:
		return 0, fmt.Errorf("%q: not a duration of 0 or more, such as 30s", arg)
	case d > limit:
		return 0, fmt.Errorf("%q: out of range 0s-%s", arg, limit)
	}
	return d, nil
}

func parsePolicy(h *Cache, args []string) error {
	if !strings.EqualFold(args[0], "prefer_positive") {
		return fmt.Errorf("%q", args[0])
	}
	h.preferPositive = true
	return nil
}

func parseServfail(h *Cache, args []string) (err error) {
	h.servfail, err = duration(args[0], maxServfail)
	return err
}

func parseDisable(h *Cache, args []string) error {
	zones := plugin.Zones{"."}
	if len(args) > 1 {
		zones = slices.Clone(args[1:])
		zones.Normalize()
	}
	for k := range h.kinds {
		if store.Kind(k).String() == args[0] { // #nosec G115 -- 0 or 1
			h.kinds[k].disabled = zones
			return nil
		}
	}
	return fmt.Errorf("%q", args[0])
}

func parseSnapshot(h *Cache, args []string) (err error) {
	s := &h.snapshot
	if args[0] == "" || strings.HasSuffix(args[0], "/") {
		return fmt.Errorf("%q", args[0])
	}
	s.file = filepath.Clean(args[0])
	if len(args) > 1 {
		if s.interval, err = duration(args[1], math.MaxInt64); err != nil {
			return err
		}
		if s.interval < time.Second || s.interval > maxInterval {
			return fmt.Errorf("%q: out of range 1s-%s", args[1], maxInterval)
		}
		s.maxAge = max(s.maxAge, s.interval)
	}
	if len(args) > 2 {
		if s.maxAge, err = duration(args[2], math.MaxInt64); err != nil {
			return err
		}
		if s.maxAge < s.interval {
			return fmt.Errorf("%q: less than INTERVAL", args[2])
		}
	}
	return nil
}

// units of sizes. The first unit that a size ends with applies, so that KiB is before B.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

func parseBudget(h *Cache, args []string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(args[0], u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		if h.budget = n * u.bytes; h.budget < minBudget {
			break
		}
		return nil
	}
	return fmt.Errorf("%q", args[0])
}
