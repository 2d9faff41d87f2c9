// Package exposed describes Services as clients outside of the cluster reach them. Plugin kubernetes has them, and plugin
// k8s_external answers queries for their names. Of the project it imports only packages store and validity.
package exposed

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// Name is a name below a zone, in lower case. Fields of labels that the name does not have are empty.
type Name struct {
	Namespace, Service string
	// Endpoint is the label before the Service. Port and Protocol are the two labels before it, without underscores; empty
	// matches any.
	Endpoint, Port, Protocol string
}

// Target is an address or a host at which a port is reachable.
type Target struct {
	// Endpoint is the label of the endpoint below its Service, empty for an address or a host of the Service itself.
	Endpoint string
	Addr     netip.Addr
	// Host is the fully qualified name of a load balancer; Addr is invalid then.
	Host string
	// Port has the name PortName and the protocol Protocol, in lower case. It is NoPort for a port without a number.
	Port               int32
	PortName, Protocol string
}

// NoPort is the Port of a Target without one: it has no SRV record.
const NoPort = -1

// Services are the exposed Services of a cluster. A method ends the validity v when the data that it reads change; v is nil
// if the answer is not stored.
type Services interface {
	// Modified is the serial of the zones.
	store.Serial
	// Synced reports whether the Services have been read once.
	Synced() bool
	// Find returns the targets of a name, with an element for each port, and whether the name exists. With headless, the
	// endpoints of headless Services and names of endpoints are among them.
	Find(n Name, headless bool, v *validity.Validity) (targets []Target, exists bool)
	// At returns the names of the Services with the external address of a reverse name, in lower case.
	At(reverse string, v *validity.Validity) []Name
	// All returns the names of all Services, ordered.
	All() []Name
	// NameServers returns the addresses of the server itself: the external addresses of its Services, with headless the
	// endpoints of its headless Services, or without Services the addresses that it listens on.
	NameServers(headless bool) []netip.Addr
}
