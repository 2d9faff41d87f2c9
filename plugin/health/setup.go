package health

import (
	"net"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/internal/inuse"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	settings, err := parse(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	// No directive of this process listens now: those of the previous configuration have ended, and all of this one start later.
	// Directive nodelocal, which shares ports, is set up before.
	if err := inuse.Check("tcp", settings.address); err != nil {
		return plugin.Error(pluginName, err)
	}
	s := &server{settings: settings}
	c.OnStartup(s.start)
	c.OnRestart(s.end)
	c.OnRestartFailed(s.start)
	c.OnFinalShutdown(s.exit)
	return nil
}

// settings are the argument and the option of the directive.
type settings struct {
	address  string
	lameduck time.Duration
}

var options = corefile.Options[*settings]{
	"lameduck": {Min: 1, Max: 1, Form: "a duration, such as 5s", Parse: func(s *settings, args []string) (err error) {
		s.lameduck, err = time.ParseDuration(args[0])
		return err
	}},
}

// parse parses the directive; CoreDNS permits it several times, and the last one counts.
func parse(c *caddy.Controller) (settings, error) {
	s := settings{address: ":8080"}
	for c.Next() {
		switch args := c.RemainingArgs(); len(args) {
		case 0:
		case 1:
			s.address = args[0]
			if _, _, err := net.SplitHostPort(s.address); err != nil {
				return s, corefile.At(c).Errorf("invalid address %q: want HOST:PORT or :PORT", s.address)
			}
		default:
			return s, c.ArgErr()
		}
		if _, err := options.Parse(c, &s); err != nil {
			return s, err
		}
	}
	return s, nil
}
