// Command nodecache is the DNS cache of a node.
package main

import (
	"os"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// directives are what a Corefile may use, in the order in which plugins see a query: that of CoreDNS.
var directives = []string{
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
	"cache",
	"template",
	"hosts",
	"loop",
	"forward",
}

func main() {
	d := daemon.Daemon{Name: "nodecache", Directives: directives}
	os.Exit(d.Run(os.Args[1:]))
}
