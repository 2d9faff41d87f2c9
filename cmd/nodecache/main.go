// Command nodecache is the DNS cache of a node.
package main

import (
	"flag"
	"os"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/cmd/internal/cleanup"
	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/doctor"
	"github.com/nearside-dns/nearside/cmd/internal/dropin"
	"github.com/nearside-dns/nearside/cmd/internal/explain"
	"github.com/nearside-dns/nearside/cmd/internal/probe"
	"github.com/nearside-dns/nearside/cmd/internal/startuptaint"
	"github.com/nearside-dns/nearside/plugin/autopath"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	_ "github.com/nearside-dns/nearside/plugin/searchpath"
)

// directives are the names that a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
var directives = []string{
	"root",
	"cancel",
	"timeouts",
	"multisocket",
	"reload",
	"nsid",
	"bufsize",
	"bind",
	"debug",
	"nodelocal",
	"trace",
	"ready",
	"health",
	"pprof",
	"prometheus",
	"errors",
	"log",
	"local",
	"dns64",
	"any",
	"chaos",
	"loadbalance",
	"rewrite",
	"fastpath",
	"searchpath",
	"autopath",
	"cache",
	"header",
	"minimal",
	"template",
	"hosts",
	"loop",
	"forward",
	"whoami",
}

func main() {
	autopath.NewNodeFinder = func(c *caddy.Controller, zone string) (autopath.NodeFinder, error) { return clients.ForNode(c, zone) }
	nodelocal.Managed = true
	node := dropin.New()
	taint := startuptaint.Remover{Node: node.Name, Ready: nodelocal.Ready}
	d := daemon.Daemon{
		Name:       "nodecache",
		Directives: directives,
		Commands:   map[string]func([]string) int{"doctor": doctor.Command, "cleanup": cleanup.Command, "explain": explain.Command("nodecache"), "probe": probe.Command("nodecache")},
		Flags:      func(f *flag.FlagSet) { node.Flags(f); taint.Flags(f) },
		Source:     node.Source,
		Started:    func(refresh func()) { node.Started(refresh); taint.Started() },
		Stopped:    func() { taint.Stopped(); node.Stopped() },
	}
	os.Exit(d.Run(os.Args[1:]))
}
