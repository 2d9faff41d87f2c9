package cache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// Defaults and limits, in seconds where they are numbers.
const (
	defaultMaxTTL   = 3600 // of answers
	defaultDenial   = 1800 // of denials
	defaultMinTTL   = 5
	maxTTL          = math.MaxInt32 // RFC 2181 section 8
	minCapacity     = 1024
	defaultServfail = 5 * time.Second
	maxServfail     = 5 * time.Minute // RFC 2308 section 7.1
	defaultGap      = time.Minute     // in the queries for what is fetched before it expires
	defaultPercent  = 10
	maxRecheck      = 5 * time.Minute
	minBudget       = 1 << 20 // bytes
)

// onFailure is what is done where nothing is said: RFC 8767 section 5 has these times.
var onFailure = stale{
	upTo: time.Hour, verify: true, timeout: 1800 * time.Millisecond, ttl: 30, recheck: 30 * time.Second, failure: true,
}

// options are what a cache block can say, besides zones.
type options struct {
	kinds          [2]kind // by store.Kind
	prefetch       prefetch
	stale          stale
	preferPositive bool
	servfail       time.Duration // for how long a failure is kept
	keepTTL        bool
	budget         int64 // of the process in bytes, 0 if it is not said
}

// kind are the options of answers or of denials.
type kind struct {
	capacity int          // entries, 0 for no limit but the budget
	max, min uint32       // of TTLs in seconds
	minGiven bool         // so that a TTL of 0 is raised as well
	except   plugin.Zones // for which nothing is kept
}

// prefetch says what is fetched before it expires.
type prefetch struct {
	amount  int64         // of queries, 0 for never
	gap     time.Duration // between them
	percent int           // of the lifetime that is left
}

// stale says what is done with an answer that has expired.
type stale struct {
	upTo    time.Duration // after it has expired; 0 for nothing
	verify  bool          // ask first
	timeout time.Duration // for the answer to that, 0 for none
	ttl     uint32        // that it is given with, in seconds
	recheck time.Duration // after a failure, nothing is asked for so long
	failure bool          // it is for failures alone: an answer that is no failure is given whatever it is
}

// newCache returns a handler with every option at its default.
func newCache(zones []string) *Cache {
	return &Cache{
		Zones:      zones,
		zonesLabel: strings.Join(zones, ","),
		options: options{
			kinds: [2]kind{
				answers.Success: {max: defaultMaxTTL, min: defaultMinTTL},
				answers.Denial:  {max: defaultDenial, min: defaultMinTTL},
			},
			prefetch: prefetch{gap: defaultGap, percent: defaultPercent},
			stale:    onFailure,
			servfail: defaultServfail,
		},
		store: answers.Shared,
		now:   answers.Now,
		wall:  time.Now,
	}
}

// parse reads the cache block of a server block; there may be one. It returns where the budget is given
// as well.
func parse(c *caddy.Controller) (h *Cache, budgetAt corefile.Position, err error) {
	for c.Next() {
		if h != nil {
			return nil, corefile.Position{}, corefile.At(c).Errorf("%v", plugin.ErrOnce)
		}
		if h, budgetAt, err = parseBlock(c); err != nil {
			return nil, corefile.Position{}, err
		}
	}
	return h, budgetAt, nil
}

func parseBlock(c *caddy.Controller) (*Cache, corefile.Position, error) {
	start, args := corefile.At(c), c.RemainingArgs()
	ttl, zones, err := parseTTL(args)
	if err != nil {
		return nil, corefile.Position{}, start.Errorf("cache: %v; it takes a TTL in seconds and zones: [TTL] [ZONES...]", err)
	}
	h := newCache(plugin.OriginsFromArgsOrServerBlock(zones, c.ServerBlockKeys))
	if ttl > 0 {
		h.kinds[answers.Success].max, h.kinds[answers.Denial].max = ttl, ttl
	}
	seen, err := parsers.Parse(c, h)
	if err != nil {
		return nil, corefile.Position{}, err
	}
	if here, ok := seen["serve_stale_policy"]; ok && (seen["serve_stale"] == corefile.Position{} || h.stale.failure) {
		return nil, here, here.Errorf("serve_stale_policy requires serve_stale")
	}
	return h, seen["budget"], nil
}

// parseTTL takes the TTL off the arguments of the directive, if they begin with one.
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
	"success":            {Min: 1, Max: -1, Form: kindForm, Parse: func(h *Cache, args []string) error { return h.kinds[answers.Success].parse(args) }},
	"denial":             {Min: 1, Max: -1, Form: kindForm, Parse: func(h *Cache, args []string) error { return h.kinds[answers.Denial].parse(args) }},
	"prefetch":           {Min: 1, Max: 3, Form: "a number of queries, and optionally a duration and 10% to 90%: AMOUNT [[DURATION] [PERCENTAGE%]]", Parse: parsePrefetch},
	"serve_stale":        {Max: 5, Form: "off, or [DURATION] [immediate [RESPONSE_TTL [FAILURE_RECHECK]] | verify [VERIFY_TIMEOUT [RESPONSE_TTL [FAILURE_RECHECK]]]]", Parse: parseServeStale},
	"serve_stale_policy": {Min: 1, Max: 1, Once: true, Form: "prefer_positive", Parse: parsePolicy},
	"servfail":           {Min: 1, Max: 1, Form: "a duration of 0s to 5m", Parse: parseServfail},
	"disable":            {Min: 1, Max: -1, Form: "success or denial, and optionally zones", Parse: parseDisable},
	"keepttl":            {Form: "no argument", Parse: func(h *Cache, _ []string) error { h.keepTTL = true; return nil }},
	"budget":             {Min: 1, Max: 1, Once: true, Form: "a size of 1MiB or more, such as 32MiB, 64MB, or a number of bytes", Parse: parseBudget},
}

// seconds reads a number of seconds of at least so many.
func seconds(arg string, least int) (uint32, error) {
	n, err := strconv.Atoi(arg)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", arg)
	}
	if n < least || n > maxTTL {
		return 0, fmt.Errorf("a TTL of %d is out of range, %d to %d", n, least, maxTTL)
	}
	return uint32(n), nil // #nosec G115 -- in range
}

// parse reads CAPACITY [TTL] [MINTTL]. What follows has no meaning, and has never been an error.
func (k *kind) parse(args []string) (err error) {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%q is no number", args[0])
	}
	k.capacity = max(n, minCapacity)
	if len(args) > 1 {
		if k.max, err = seconds(args[1], 1); err != nil {
			return err
		}
	}
	if len(args) > 2 {
		if k.min, err = seconds(args[2], 0); err != nil {
			return err
		}
		k.minGiven = true
	}
	if len(args) > 3 {
		log.Warningf("%q has no meaning after CAPACITY TTL MINTTL", args[3:])
	}
	return nil
}

func parsePrefetch(h *Cache, args []string) error {
	amount, err := strconv.Atoi(args[0])
	if err != nil || amount < 0 {
		return fmt.Errorf("%q is no number of queries", args[0])
	}
	h.prefetch.amount = int64(amount)
	if len(args) > 1 {
		if h.prefetch.gap, err = time.ParseDuration(args[1]); err != nil {
			return fmt.Errorf("%q is no duration", args[1])
		}
	}
	if len(args) > 2 {
		n, err := strconv.Atoi(strings.TrimSuffix(args[2], "%"))
		if err != nil || !strings.HasSuffix(args[2], "%") || n < 10 || n > 90 {
			return fmt.Errorf("%q is not 10%% to 90%%", args[2])
		}
		h.prefetch.percent = n
	}
	return nil
}

func parseServeStale(h *Cache, args []string) (err error) {
	if len(args) > 0 && args[0] == "off" {
		if len(args) > 1 {
			return fmt.Errorf("%q has no meaning after off", args[1:])
		}
		h.stale = stale{failure: true}
		return nil
	}
	s := stale{upTo: time.Hour}
	if len(args) > 0 {
		if s.upTo, err = duration(args[0], math.MaxInt64); err != nil {
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
			return fmt.Errorf("%q is not immediate or verify", args[1])
		}
	}
	if err := s.parseGiven(rest); err != nil {
		return err
	}
	h.stale = s
	return nil
}

// parseGiven reads [RESPONSE_TTL [FAILURE_RECHECK]].
func (s *stale) parseGiven(args []string) (err error) {
	if len(args) > 2 {
		return fmt.Errorf("%q is too much", args[2:])
	}
	if len(args) > 0 {
		ttl, err := duration(args[0], math.MaxUint32*time.Second)
		if err != nil {
			return err
		}
		if ttl%time.Second != 0 {
			return fmt.Errorf("a TTL of %q has parts of a second", args[0])
		}
		s.ttl = uint32(ttl / time.Second) // #nosec G115 -- in range
	}
	if len(args) > 1 {
		s.recheck, err = duration(args[1], maxRecheck)
	}
	return err
}

// duration reads a duration of 0 up to the greatest that may be.
func duration(arg string, most time.Duration) (time.Duration, error) {
	d, err := time.ParseDuration(arg)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration such as 30s", arg)
	}
	if d < 0 {
		return 0, fmt.Errorf("%q is negative", arg)
	}
	if d > most {
		return 0, fmt.Errorf("%q is more than %s", arg, most)
	}
	return d, nil
}

func parsePolicy(h *Cache, args []string) error {
	if !strings.EqualFold(args[0], "prefer_positive") {
		return fmt.Errorf("%q is no policy", args[0])
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
		if answers.Kind(k).String() == args[0] { // #nosec G115 -- one of two
			h.kinds[k].except = zones
			return nil
		}
	}
	return fmt.Errorf("%q is neither", args[0])
}

// units are what sizes are given in. The longer ones come first: they end like the shorter ones.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

var errSize = errors.New("it is no such size")

func parseBudget(h *Cache, args []string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(args[0], u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			return fmt.Errorf("%q: %w", args[0], errSize)
		}
		if h.budget = n * u.bytes; h.budget < minBudget {
			return fmt.Errorf("%q is too little", args[0])
		}
		return nil
	}
	return fmt.Errorf("%q: %w", args[0], errSize)
}
