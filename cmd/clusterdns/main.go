// Command clusterdns is the cluster DNS server.
package main

import (
	"os"

	"github.com/nearside-dns/nearside/cmd/clusterdns/program"
)

func main() { os.Exit(program.Run(os.Args[1:], program.Directives)) }
