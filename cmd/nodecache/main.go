// Command nodecache is the DNS cache of a node.
package main

import (
	"os"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/cmd/internal/cleanup"
	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/doctor"
	"github.com/nearside-dns/nearside/cmd/internal/nodelocaldns"
	"github.com/nearside-dns/nearside/cmd/internal/probe"
	"github.com/nearside-dns/nearside/plugin/autopath"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	_ "github.com/nearside-dns/nearside/plugin/nodelocal"
	_ "github.com/nearside-dns/nearside/plugin/searchpath"
)

// directives are what a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
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
	node := nodelocaldns.New()
	d := daemon.Daemon{
		Name:       "nodecache",
		Directives: directives,
		Commands:   map[string]func([]string) int{"doctor": doctor.Command, "cleanup": cleanup.Command, "probe": probe.Command("nodecache")},
		Flags:      node.Flags,
		Source:     node.Source,
		Started:    node.Started,
		Stopped:    node.Stopped,
	}
	os.Exit(d.Run(os.Args[1:]))
}
