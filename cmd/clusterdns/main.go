// Command clusterdns is the cluster DNS server.
package main

import (
	"os"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	_ "github.com/nearside-dns/nearside/plugin/kubernetes"
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
	"cache",
	"template",
	"transfer",
	"hosts",
	"kubernetes",
	"loop",
	"forward",
	"whoami",
}

func main() {
	d := daemon.Daemon{Name: "clusterdns", Directives: directives}
	os.Exit(d.Run(os.Args[1:]))
}
