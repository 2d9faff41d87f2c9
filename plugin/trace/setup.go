package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/openzipkin/zipkin-go/model"

	"github.com/nearside-dns/nearside/internal/pages"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	s, err := corefile.Once(c, parse)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	config := dnsserver.GetConfig(c)
	t, err := newTrace(s, localEndpoint(s.service, config))
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		t.Next = next
		return t
	})
	reload.Follow(c, reload.Owner{
		Start: func() error { running.start(t.collector); return nil },
		Stop: func(end reload.End) error {
			t.collector.wake()
			if end != reload.Exit { // at an exit the servers still answer: Stopped ends the collectors
				time.AfterFunc(lateTime, t.collector.close)
			}
			return nil
		},
	})
	return nil
}

// localEndpoint returns the description of this server in spans: the service, and the first address of the server block if it is
// bound to one.
func localEndpoint(service string, config *dnsserver.Config) *model.Endpoint {
	e := &model.Endpoint{ServiceName: service}
	if len(config.ListenHosts) == 0 {
		return e
	}
	address, err := netip.ParseAddr(config.ListenHosts[0])
	if err != nil {
		return e
	}
	if address = address.WithZone(""); address.Is4() {
		e.IPv4 = address.AsSlice()
	} else {
		e.IPv6 = address.AsSlice()
	}
	if port, err := strconv.ParseUint(config.Port, 10, 16); err == nil {
		e.Port = uint16(port)
	}
	return e
}

// settings are the arguments and options of the directive.
type settings struct {
	endpoint *url.URL
	every    uint64
	service  string
	shared   bool // a client of DNS over HTTPS and the server have one span
	backlog  int
	batch    int
	interval time.Duration
}

// Defaults of CoreDNS and of zipkin-go's reporter.
const (
	zipkinType      = "zipkin"
	defaultEndpoint = "localhost:9411"
	endpointPath    = "/api/v2/spans"
	defaultService  = "coredns"
	defaultBacklog  = 1000
	defaultBatch    = 100
	defaultInterval = time.Second
)

// maxSpans is the highest number of spans that may wait: they take about 1 GB.
const maxSpans = 1_000_000

// minInterval is the shortest time between two requests.
const minInterval = time.Millisecond

var options = corefile.Options[*settings]{
	"every": {Min: 1, Max: 1, Form: "a number of queries", Parse: func(s *settings, args []string) (err error) {
		if s.every, err = strconv.ParseUint(args[0], 10, 64); err != nil {
			return fmt.Errorf("%q", args[0])
		}
		return nil
	}},
	"service": {Min: 1, Max: 1, Form: "a name", Parse: func(s *settings, args []string) error {
		s.service = args[0]
		return nil
	}},
	"client_server": {Max: 1, Form: "true, false or nothing", Parse: func(s *settings, args []string) (err error) {
		s.shared = true
		if len(args) == 0 {
			return nil
		}
		if s.shared, err = strconv.ParseBool(args[0]); err != nil {
			return fmt.Errorf("%q", args[0])
		}
		return nil
	}},
	"zipkin_max_backlog_size":   spans(func(s *settings) *int { return &s.backlog }, defaultBacklog),
	"zipkin_max_batch_size":     spans(func(s *settings) *int { return &s.batch }, defaultBatch),
	"zipkin_max_batch_interval": {Min: 1, Max: 1, Form: "1ms or longer, or 0 for 1s", Parse: parseInterval},
	"datadog_analytics_rate":    {Max: 1, Form: "0-1", Parse: checkRate}, // CoreDNS accepts it beside zipkin, without effect
}

// spans returns an option with a number of spans; 0 stands for the default.
func spans(field func(*settings) *int, whenZero int) corefile.Option[*settings] {
	return corefile.Option[*settings]{Min: 1, Max: 1, Form: fmt.Sprintf("1-%d, or 0 for %d", maxSpans, whenZero), Parse: func(s *settings, args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 0 || n > maxSpans {
			return fmt.Errorf("%q", args[0])
		}
		if n == 0 {
			n = whenZero
		}
		*field(s) = n
		return nil
	}}
}

func parseInterval(s *settings, args []string) error {
	d, err := time.ParseDuration(args[0])
	if err != nil || d != 0 && d < minInterval {
		return fmt.Errorf("%q", args[0])
	}
	if d == 0 {
		d = defaultInterval
	}
	s.interval = d
	return nil
}

func checkRate(_ *settings, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if rate, err := strconv.ParseFloat(args[0], 64); err != nil || !(rate >= 0 && rate <= 1) {
		return fmt.Errorf("%q", args[0])
	}
	return nil
}

// errZipkinOnly is the error of another type of endpoint, such as datadog.
var errZipkinOnly = errors.New("want zipkin and an endpoint: nearside sends spans to Zipkin collectors only; a program with CoreDNS's trace: " + pages.Bundle)

func parse(c *caddy.Controller) (*settings, error) {
	here := corefile.At(c)
	s := &settings{every: 1, service: defaultService, backlog: defaultBacklog, batch: defaultBatch, interval: defaultInterval}
	args := c.RemainingArgs()
	invalid := func(err error) error {
		return here.Errorf("invalid %s: %w", strings.TrimSpace(pluginName+" "+corefile.Quote(args)), err)
	}
	endpoint := defaultEndpoint
	switch {
	case len(args) > 2:
		return nil, invalid(errors.New("want [ENDPOINT-TYPE] [ENDPOINT]"))
	case len(args) == 2 && !strings.EqualFold(args[0], zipkinType):
		return nil, invalid(errZipkinOnly)
	case len(args) > 0 && args[len(args)-1] != "":
		endpoint = args[len(args)-1]
	}
	var err error
	if s.endpoint, err = parseEndpoint(endpoint); err != nil {
		return nil, invalid(err)
	}
	if _, err := options.Parse(c, s); err != nil {
		return nil, err
	}
	return s, nil
}

// parseEndpoint returns the address of requests: a URL, or that of a host and port.
func parseEndpoint(endpoint string) (*url.URL, error) {
	lower := strings.ToLower(endpoint)
	if !strings.HasPrefix(lower, "http://") && !strings.HasPrefix(lower, "https://") {
		endpoint = "http://" + endpoint + endpointPath
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" {
		return nil, errors.New("want an address, or a URL of http or https")
	}
	return u, nil
}
