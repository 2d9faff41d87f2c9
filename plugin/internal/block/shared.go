package block

import (
	"slices"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// neutral are the plugins that change neither queries for names of the cluster nor the answers to them.
var neutral = []string{
	"autopath", "cache", "errors", "forward", "loadbalance", "log", "loop", "metadata", "nodelocal", "prometheus",
	"searchpath", "whoami",
}

// IsShared reports whether another plugin of a server block, such as hosts or rewrite, may answer a name of the cluster
// or change the query, or another block may get the query (plugin view). Such a plugin sees only the queried name and
// not the other candidates of a search list. alsoNeutral are further plugins that the calling plugin knows.
func IsShared(config *dnsserver.Config, alsoNeutral ...string) bool {
	return len(config.FilterFuncs) > 0 || slices.ContainsFunc(config.Handlers(), func(h plugin.Handler) bool {
		return !slices.Contains(neutral, h.Name()) && !slices.Contains(alsoNeutral, h.Name())
	})
}
