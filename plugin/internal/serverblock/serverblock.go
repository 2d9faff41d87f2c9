// Package serverblock looks at the plugins of a server block, as CoreDNS has it.
package serverblock

import (
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// bystanders are the plugins that leave names of the cluster, and queries for them, as they are.
var bystanders = []string{
	"autopath", "cache", "errors", "forward", "loadbalance", "log", "loop", "metadata", "nodelocal", "prometheus",
	"searchpath", "whoami",
}

// IsShared reports whether something else in a server block, such as hosts or rewrite, may have its own answer to a
// name of the cluster, or another block may have the name. It sees only the name that is asked for, and not the others
// of a search list. Further plugins that don't are those that the asking plugin knows of.
func IsShared(config *dnsserver.Config, further ...string) bool {
	return len(config.FilterFuncs) > 0 || slices.ContainsFunc(config.Handlers(), func(h plugin.Handler) bool {
		return !slices.Contains(bystanders, h.Name()) && !slices.Contains(further, h.Name())
	})
}
