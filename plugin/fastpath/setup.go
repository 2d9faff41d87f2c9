package fastpath

import (
	"fmt"
	"strconv"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

const pluginName = "fastpath"

var log = clog.NewWithPlugin(pluginName)

const serverType = "dns"

// init registers the plugin, and the callbacks that each Corefile triggers, also one without directive fastpath: all server
// blocks must be known, so that no query is answered from the store of another block, and so that a configuration without
// stored answers takes over the listeners.
func init() {
	plugin.Register(pluginName, setup)
	block.Register(process)
	caddy.RegisterParsingCallback(serverType, pluginName, func(c caddy.Context) error {
		block.Read(c)
		return nil
	})
	caddy.RegisterEventHook(pluginName, func(event caddy.EventName, _ any) error {
		if event == caddy.InstanceStartupEvent {
			block.Started()
		}
		return nil
	})
}

func setup(c *caddy.Controller) error {
	if _, err := corefile.Once(c, parse); err != nil {
		return plugin.Error(pluginName, err)
	}
	return nil
}

// options are the options of the directive.
var options = corefile.Options[*block.Block]{
	"max_concurrent":  {Min: 1, Max: 1, Form: fmt.Sprintf("a number from 1 to %d", maxMaxConcurrent), Parse: parseMaxConcurrent},
	"max_connections": {Min: 1, Max: 2, Form: fmt.Sprintf("one or two numbers from 1 to %d", maxMaxConcurrent), Parse: parseMaxConnections},
	"kernel":          {Min: 1, Max: 1, Once: true, Form: "on, off or force", Parse: parseKernel},
}

// parse parses fastpath [on|off] { max_concurrent NUMBER; max_connections PROCESS [CLIENT]; kernel on|off|force }.
func parse(c *caddy.Controller) (*block.Block, error) {
	b := block.Of(c)
	switch args := c.RemainingArgs(); {
	case len(args) == 0 || len(args) == 1 && args[0] == "on":
	case len(args) == 1 && args[0] == "off":
		b.FastPathOff = true
	default:
		return nil, c.Errf("invalid fastpath %s: want on, off or nothing", corefile.Quote(args))
	}
	_, err := options.Parse(c, b)
	return b, err
}

// maxMaxConcurrent limits max_concurrent: that number of queries takes 100 GiB, at runningCost.
const maxMaxConcurrent = 1 << 20

func parseMaxConcurrent(b *block.Block, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > maxMaxConcurrent {
		return fmt.Errorf("%q", args[0])
	}
	b.MaxConcurrent = n
	return nil
}

func parseMaxConnections(b *block.Block, args []string) error {
	for i, limit := range []*int{&b.MaxConnections, &b.MaxClientConnections}[:len(args)] {
		n, err := strconv.Atoi(args[i])
		if err != nil || n < 1 || n > maxMaxConcurrent {
			return fmt.Errorf("%q", args[i])
		}
		*limit = n
	}
	return nil
}

func parseKernel(b *block.Block, args []string) error {
	switch args[0] {
	case "on", "force":
		b.Kernel, b.KernelForced = true, args[0] == "force"
	case "off":
		b.Kernel, b.KernelForced = false, false
	default:
		return fmt.Errorf("%q", args[0])
	}
	return nil
}
