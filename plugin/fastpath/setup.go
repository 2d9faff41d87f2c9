package fastpath

import (
	"strconv"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const pluginName = "fastpath"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	b := BlockOf(c)
	if err := b.parse(c); err != nil {
		return plugin.Error(pluginName, err)
	}
	return nil
}

// options are those of the directive's block.
var options = map[string]func(*Block, *caddy.Controller) error{
	"max_concurrent": (*Block).parseMost,
}

// parse reads fastpath [on|off] { max_concurrent NUMBER }.
func (b *Block) parse(c *caddy.Controller) error {
	for seen := false; c.Next(); seen = true {
		if seen {
			return c.Errf("%s is given twice in a server block", pluginName)
		}
		switch args := c.RemainingArgs(); {
		case len(args) == 0 || len(args) == 1 && args[0] == "on":
		case len(args) == 1 && args[0] == "off":
			b.off = true
		default:
			return c.Errf("%q: say on, off, or nothing", args)
		}
		for c.NextBlock() {
			option := options[c.Val()]
			if option == nil {
				return c.Errf("unknown option %q: max_concurrent is the only one", c.Val())
			}
			if err := option(b, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// highestMost bounds max_concurrent: at runningCost each, that many queries take 100 GiB.
const highestMost = 1 << 20

func (b *Block) parseMost(c *caddy.Controller) error {
	args := c.RemainingArgs()
	if len(args) != 1 {
		return c.Errf("max_concurrent takes one number, not %q", args)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > highestMost {
		return c.Errf("max_concurrent %q: say a number from 1 to %d", args[0], highestMost)
	}
	b.most = n
	return nil
}
