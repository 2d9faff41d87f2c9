// Package multicluster registers the directive of CoreDNS's external plugin of the same name, which answers queries for the
// ServiceImports of a clusterset (KEP-1645). Input is the lines of a server block; output is a handler of package kubernetes
// with zones of a clusterset only. It is the only plugin that imports another one.
package multicluster

import (
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes"
)

func init() { corefile.Register("multicluster", kubernetes.SetupMulticluster) }
