// Command clusterdns-geoip is clusterdns with one more plugin: CoreDNS's geoip.
package main

import (
	"os"
	"slices"

	_ "github.com/coredns/coredns/plugin/geoip"

	"github.com/nearside-dns/nearside/cmd/clusterdns/program"
)

func main() {
	behind := slices.Index(program.Directives, "metadata") + 1 // the place of geoip in CoreDNS's plugin.cfg
	os.Exit(program.Run(os.Args[1:], slices.Insert(slices.Clone(program.Directives), behind, "geoip")))
}
