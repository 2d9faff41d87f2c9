package corefile

import (
	"fmt"
	"os"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/internal/pages"
)

const serverType = "dns"

// Register registers a plugin that replaces CoreDNS's plugin of the same name.
func Register(name string, setup caddy.SetupFunc) {
	if _, err := caddy.DirectiveAction(serverType, name); err == nil {
		ExitReplaced(name)
	}
	caddy.RegisterPlugin(name, caddy.Plugin{ServerType: serverType, Action: setup})
}

// ExitReplaced ends the process with one line: the program has CoreDNS's plugin of that name as well. Both would register the
// same directive and metrics, which panics.
func ExitReplaced(name string) {
	fmt.Fprintf(os.Stderr, "plugin %s of nearside: this program has CoreDNS's as well: remove or replace each plugin that imports it in plugin.cfg (CoreDNS's k8s_external imports kubernetes), see %s\n", name, pages.Bundle)
	os.Exit(1)
}
