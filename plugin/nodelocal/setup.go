package nodelocal

import (
	"fmt"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

const pluginName = "nodelocal"

var log = clog.NewWithPlugin(pluginName)

func init() { plugin.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	cfg, err := parseConfig(c)
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	handler := &handler{NodeLocal: NodeLocal{suffix: healthSuffix(cfg.zone), addresses: slices.Concat(cfg.Addresses, cfg.questionFrom)}, node: newNode(cfg)}
	c.OnStartup(func() error { return nodes.start(handler.node) })
	c.OnRestart(func() error { nodes.reloadBegins(); return nil })
	c.OnRestartFailed(func() error { nodes.reloadFailed(handler.node); return nil })
	c.OnShutdown(func() error { nodes.shutdown(handler.node); return nil })
	c.OnFinalShutdown(func() error { handler.node.leave(); return nil })
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
	mu        sync.Mutex
	running   []*node
	reloading bool
	old       []*node // the nodes before the current reload
}

// start starts a node. A second one with the same interface is an error.
func (r *registry) start(n *node) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.running {
		if other.config.Interface == n.config.Interface && !slices.Contains(r.old, other) {
			return fmt.Errorf("plugin/%s: interface %s is given in two server blocks", pluginName, n.config.Interface)
		}
	}
	if err := n.start(); err != nil {
		return fmt.Errorf("plugin/%s: %w", pluginName, err)
	}
	r.running = append(r.running, n)
	return nil
}

// reloadBegins records the running nodes: those of the next configuration start beside them.
func (r *registry) reloadBegins() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.reloading {
		r.reloading, r.old = true, slices.Clone(r.running)
	}
}

// reloadFailed ends the nodes of the refused configuration, and lets the node that stays restore its state in the kernel.
func (r *registry) reloadFailed(stays *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.running {
		if r.reloading && !slices.Contains(r.old, n) {
			n.handOver(r.old)
		}
	}
	if r.reloading {
		r.running, r.old, r.reloading = r.old, nil, false
	}
	stays.poke()
}

// shutdown ends a node at the end of a reload. At the end of the process the node runs until the final shutdown, after
// which the server stops.
func (r *registry) shutdown(n *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.old, n)
	if !r.reloading || i < 0 {
		return
	}
	r.running = slices.DeleteFunc(r.running, func(other *node) bool { return other == n })
	n.handOver(r.running)
	if r.old = slices.Delete(r.old, i, i+1); len(r.old) == 0 {
		r.reloading = false
	}
	for _, other := range r.running {
		other.poke()
	}
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
