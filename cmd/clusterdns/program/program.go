// Package program is clusterdns as a library, for programs with further plugins: see docs/bundle.md. Input: the arguments and
// the directives; output: the exit code.
package program

import (
	"context"
	"time"

	"github.com/coredns/caddy"
	_ "github.com/coredns/caddy/onevent"
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/auto"
	_ "github.com/coredns/coredns/plugin/dnstap"
	_ "github.com/coredns/coredns/plugin/dynupdate"
	_ "github.com/coredns/coredns/plugin/erratic"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/grpc"
	_ "github.com/coredns/coredns/plugin/grpc_server"
	_ "github.com/coredns/coredns/plugin/https"
	_ "github.com/coredns/coredns/plugin/https3"
	_ "github.com/coredns/coredns/plugin/proxyproto"
	_ "github.com/coredns/coredns/plugin/quic"
	_ "github.com/coredns/coredns/plugin/secondary"
	_ "github.com/coredns/coredns/plugin/shed"
	_ "github.com/coredns/coredns/plugin/sign"
	_ "github.com/coredns/coredns/plugin/siit"
	_ "github.com/coredns/coredns/plugin/tsig"
	_ "github.com/coredns/coredns/plugin/view"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/explain"
	"github.com/nearside-dns/nearside/cmd/internal/metricsserver"
	"github.com/nearside-dns/nearside/cmd/internal/probe"
	"github.com/nearside-dns/nearside/plugin/autopath"
	_ "github.com/nearside-dns/nearside/plugin/dnssec"
	_ "github.com/nearside-dns/nearside/plugin/k8s_external"
	_ "github.com/nearside-dns/nearside/plugin/kubernetes"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	_ "github.com/nearside-dns/nearside/plugin/multicluster"
	_ "github.com/nearside-dns/nearside/plugin/searchpath"
	_ "github.com/nearside-dns/nearside/plugin/tls"
)

// Directives are the names that a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
var Directives = []string{
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
	"shed",
	"prometheus",
	"errors",
	"log",
	"dnstap",
	"local",
	"dns64",
	"siit",
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
	"dynupdate",
	"hosts",
	"k8s_external",
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
	"on",
	"sign",
	"view",
}

// metricsInterval is the time between two attempts to serve -metrics-listen-address, and between two checks of its TLS files.
const metricsInterval = time.Minute

// Run runs clusterdns with the arguments of the command line and these directives until it ends, and returns the exit code of
// the process. Each directive needs a plugin that the program imports.
func Run(args, directives []string) int {
	autopath.NewNodeFinder = func(c *caddy.Controller, zone string) (autopath.NodeFinder, error) { return clients.ForNode(c, zone) }
	var metrics metricsserver.Server
	ctx, stop := context.WithCancel(context.Background())
	d := daemon.Daemon{
		Name:       "clusterdns",
		Directives: directives,
		Commands:   map[string]func([]string) int{"explain": explain.Command("clusterdns"), "probe": probe.Command("clusterdns")},
		Flags:      metrics.Flags,
		Started:    func(func()) { go metrics.Serve(ctx, metricsInterval) },
		Stopped:    stop,
	}
	return d.Run(args)
}
