// Command clusterdns is the cluster DNS server.
package main

import (
	"os"
	"runtime/debug"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/probe"
	"github.com/nearside-dns/nearside/plugin/autopath"
	_ "github.com/nearside-dns/nearside/plugin/kubernetes"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	_ "github.com/nearside-dns/nearside/plugin/multicluster"
	_ "github.com/nearside-dns/nearside/plugin/searchpath"
)

// directives are what a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
var directives = []string{
	"metadata",
	"reload",
	"bind",
	"debug",
	"ready",
	"health",
	"pprof",
	"prometheus",
	"errors",
	"log",
	"loadbalance",
	"rewrite",
	"fastpath",
	"searchpath",
	"autopath",
	"cache",
	"template",
	"transfer",
	"hosts",
	"kubernetes",
	"multicluster",
	"loop",
	"forward",
	"whoami",
}

func main() {
	autopath.NewNodeFinder = func(c *caddy.Controller, zone string) (autopath.NodeFinder, error) { return clients.ForNode(c, zone) }
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // a query makes little garbage, so that memory costs more than the collector's time
	}
	d := daemon.Daemon{
		Name:       "clusterdns",
		Directives: directives,
		Commands:   map[string]func([]string) int{"probe": probe.Command("clusterdns")},
	}
	os.Exit(d.Run(os.Args[1:]))
}
