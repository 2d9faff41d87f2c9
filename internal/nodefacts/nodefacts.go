// Package nodefacts has settings of the process from which plugins take defaults: the node's name, its cluster DNS and
// other facts that nodecache finds out and no Corefile states. Input is the facts for one Corefile, before that is
// loaded; output is those facts in the setup of a directive. It imports no plugin.
package nodefacts

import "sync/atomic"

// MaxUpstreams is how many upstreams a forward directive can have.
const MaxUpstreams = 15

// Facts belong to one Corefile. The zero value gives no directive a default.
type Facts struct {
	Corefile string          // the file whose directives take defaults; those of imported files do not
	Node     string          // name of this node, "" if unknown
	Zone     string          // topology zone of this node, "" if unknown
	Forward  map[int]Forward // by the line of a forward directive
}

// Forward are the defaults of one forward directive.
type Forward struct {
	Servers    []string // upstreams instead of those in the Corefile, where that names a resolv.conf; nil: as in the Corefile
	TCP        bool     // query over TCP, and over UDP where TCP fails, unless an option or an upstream chooses the transport
	Caller     bool     // send node and zone with each query, unless the option caller does
	ClusterDNS bool     // all upstreams are cluster DNS
}

var current atomic.Pointer[Facts]

// Set replaces the facts and returns those before. Call it before a Corefile is loaded, and with the returned facts if
// the Corefile is refused. Plugins read facts in setup only.
func Set(f Facts) (previous Facts) {
	if p := current.Swap(&f); p != nil {
		return *p
	}
	return Facts{}
}

// For returns the facts for a directive that is in this file.
func For(file string) Facts {
	if f := current.Load(); f != nil && f.Corefile == file {
		return *f
	}
	return Facts{}
}
