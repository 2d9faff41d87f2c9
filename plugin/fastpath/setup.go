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

// The fast path needs to know every server block: a query for a block without stored answers must not be answered from
// another block, and a listener is handed over to a configuration that stores nothing, too. So each Corefile is read when
// its directives up to this one have been parsed, used or not.
func init() {
	plugin.Register(pluginName, setup)
	block.Register(fastPath{})
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
	if err := parse(block.Of(c), c); err != nil {
		return plugin.Error(pluginName, err)
	}
	return nil
}

// options are those of the directive's block.
var options = corefile.Options[*block.Block]{
	"max_concurrent": {Min: 1, Max: 1, Form: fmt.Sprintf("a number from 1 to %d", maxMaxConcurrent), Parse: parseMaxConcurrent},
}

// parse parses fastpath [on|off] { max_concurrent NUMBER }.
func parse(b *block.Block, c *caddy.Controller) error {
	for seen := false; c.Next(); seen = true {
		if seen {
			return c.Errf("%s is given twice in a server block", pluginName)
		}
		switch args := c.RemainingArgs(); {
		case len(args) == 0 || len(args) == 1 && args[0] == "on":
		case len(args) == 1 && args[0] == "off":
			b.FastPathOff = true
		default:
			return c.Errf("%q: say on, off, or nothing", args)
		}
		if _, err := options.Parse(c, b); err != nil {
			return err
		}
	}
	return nil
}

// maxMaxConcurrent bounds max_concurrent: at runningCost each, that many queries take 100 GiB.
const maxMaxConcurrent = 1 << 20

func parseMaxConcurrent(b *block.Block, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("%q is no number", args[0])
	}
	if n < 1 || n > maxMaxConcurrent {
		return fmt.Errorf("%q is out of range", args[0])
	}
	b.MaxConcurrent = n
	return nil
}
