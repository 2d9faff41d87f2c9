package nodelocal

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/internal/inuse"
	"github.com/nearside-dns/nearside/internal/pages"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
)

const pluginName = "nodelocal"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

// Managed is set by a program that calls Stopped at its end. In any other program, the directive is an error: interface and
// rules would remain.
var Managed bool

func setup(c *caddy.Controller) error {
	if !Managed {
		return plugin.Error(pluginName, errors.New("only nodecache removes the interface and the rules at its end: use nodecache, see "+pages.Bundle))
	}
	cfg, err := parseConfig(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	cfg.context = c.Context()
	inuse.Share() // an update starts the next process beside this one
	handler := &handler{NodeLocal: NodeLocal{suffix: healthSuffix(cfg.zone), addresses: slices.Concat(cfg.Addresses, cfg.questionFrom)}, node: newNode(cfg)}
	reload.Follow(c, reload.Owner{
		Start:  func() error { return nodes.start(handler.node) },
		Stop:   func(end reload.End) error { nodes.stop(handler.node, end); return nil },
		Retain: handler.node.poke,
	})
	dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
		handler.Next = next
		return handler
	})
	return nil
}

// handler is the plugin of a server block with its node.
type handler struct {
	NodeLocal
	node *node
}

// Ready implements ready.Readiness: the server answers itself on every address, over lo at least.
func (h *handler) Ready() bool { return h.node.ready() }

// nodes are the nodes of the process: one per interface, usually one, and two during a reload.
var nodes = new(registry)

type registry struct {
	mu      sync.Mutex
	running []*node
}

// start starts a node. Two nodes of one configuration with the same interface are an error.
func (r *registry) start(n *node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.running {
		if other.config.Interface == n.config.Interface && other.config.context == n.config.context {
			return fmt.Errorf("plugin/%s: duplicate interface %s: want one server block with it", pluginName, n.config.Interface)
		}
	}
	if err := n.start(); err != nil {
		return fmt.Errorf("plugin/%s: %w", pluginName, err)
	}
	r.running = append(r.running, n)
	return nil
}

// stop ends a node with its configuration, and lets the nodes of the configuration that stays restore their state in the
// kernel. At the end of the process the node only releases its leases: it runs until the program calls Stopped.
func (r *registry) stop(n *node, end reload.End) {
	if end == reload.Exit {
		n.leave()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running = slices.DeleteFunc(r.running, func(other *node) bool { return other == n })
	stay := slices.DeleteFunc(slices.Clone(r.running), func(other *node) bool { return other.config.context == n.config.context })
	n.handOver(stay)
	for _, other := range stay {
		other.poke()
	}
}

// Ready returns whether the server answers itself on every address of every nodelocal directive of the process, over lo at
// least. Without a directive it is true.
func Ready() bool {
	nodes.mu.Lock()
	defer nodes.mu.Unlock()
	return !slices.ContainsFunc(nodes.running, func(n *node) bool { return !n.ready() })
}

// Stopped removes interfaces and rules of the process, unless the option keep is set or another instance uses them. The
// program calls it after its servers have stopped.
func Stopped() {
	nodes.mu.Lock()
	defer nodes.mu.Unlock()
	for _, n := range nodes.running {
		n.finish()
	}
	nodes.running = nil
}
