// Command clusterdns is the cluster DNS server.
package main

import (
	"os"
	"runtime/debug"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/auto"
	_ "github.com/coredns/coredns/plugin/dnssec"
	_ "github.com/coredns/coredns/plugin/dnstap"
	_ "github.com/coredns/coredns/plugin/erratic"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/grpc"
	_ "github.com/coredns/coredns/plugin/grpc_server"
	_ "github.com/coredns/coredns/plugin/https"
	_ "github.com/coredns/coredns/plugin/https3"
	_ "github.com/coredns/coredns/plugin/proxyproto"
	_ "github.com/coredns/coredns/plugin/quic"
	_ "github.com/coredns/coredns/plugin/secondary"
	_ "github.com/coredns/coredns/plugin/sign"
	_ "github.com/coredns/coredns/plugin/tsig"
	_ "github.com/coredns/coredns/plugin/view"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/probe"
	"github.com/nearside-dns/nearside/plugin/autopath"
	_ "github.com/nearside-dns/nearside/plugin/kubernetes"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	_ "github.com/nearside-dns/nearside/plugin/multicluster"
	_ "github.com/nearside-dns/nearside/plugin/searchpath"
	_ "github.com/nearside-dns/nearside/plugin/tls"
)

// directives are what a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
var directives = []string{
	"root",
	"metadata",
	"cancel",
	"proxyproto",
	"quic",
	"grpc_server",
	"https",
	"https3",
	"timeouts",
	"multisocket",
	"reload",
	"nsid",
	"bufsize",
	"bind",
	"debug",
	"trace",
	"ready",
	"health",
	"pprof",
	"prometheus",
	"errors",
	"log",
	"dnstap",
	"local",
	"dns64",
	"any",
	"chaos",
	"loadbalance",
	"tsig",
	"rewrite",
	"fastpath",
	"searchpath",
	"autopath",
	"acl",
	"cache",
	"header",
	"dnssec",
	"tls",
	"minimal",
	"template",
	"transfer",
	"hosts",
	"kubernetes",
	"multicluster",
	"file",
	"auto",
	"secondary",
	"loop",
	"forward",
	"grpc",
	"erratic",
	"whoami",
	"sign",
	"view",
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
