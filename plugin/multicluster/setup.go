// Package multicluster is the directive of CoreDNS's external plugin of that name: it answers the names of the
// ServiceImports of a clusterset (KEP-1645). In go a server block's lines; out comes a handler of package kubernetes
// whose zones are all of a clusterset. That package has everything else.
package multicluster

import (
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/kubernetes"
)

func init() { plugin.Register("multicluster", kubernetes.SetupMulticluster) }
