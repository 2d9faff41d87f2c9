// Package snapshot writes the records of an index to a file, and reads them. The file is a sequence of CBOR items (RFC 8742), a
// header and records of each kind, and the SHA-256 of them. Input is an index, or a file; output is a file, or records that are complete and
// valid. It opens no connection, and imports neither client-go nor a plugin.
package snapshot

import (
	"errors"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// Version is the version of the format. A file of another version is refused.
const Version = 1

const magic = "nearside snapshot"

// Header describes a snapshot.
type Header struct {
	// Cluster is the UID of the namespace kube-system, which identifies the cluster.
	Cluster string
	// Server identifies the API server, and the authority of its certificate.
	Server string
	// Options identify the resources that were read, and the parts of them that were stored.
	Options string
	// Time is the time at which the records were known to be current.
	Time time.Time
}

// headerItem is the first item of a file.
type headerItem struct {
	_       struct{} `cbor:",toarray"`
	Magic   string
	Version int
	Cluster string
	Server  string
	Options string
	Time    int64 // Unix time in milliseconds
}

// kind is the kind of a recordItem.
type kind uint8

const (
	serviceKind kind = iota + 1
	importKind
	sliceKind
	namespaceKind
	podKind
	nodeKind
	clusterIDKind
)

// recordItem is an item after the header.
type recordItem struct {
	_      struct{} `cbor:",toarray"`
	Kind   kind
	Record cbor.RawMessage
}

type serviceItem struct {
	_         struct{} `cbor:",toarray"`
	Namespace string
	Name      string
	Kind      uint8
	Wait      uint16
	IPs       [][]byte
	Target    string
	Ports     []portItem
	Topology  *topologyItem
	External  *externalItem
}

type portItem struct {
	_        struct{} `cbor:",toarray"`
	Name     string
	Protocol string
	Number   int32
}

type topologyItem struct {
	_            struct{} `cbor:",toarray"`
	Keys         []string // nil without the annotation
	Local        bool
	Auto         bool
	Distribution uint8
}

type externalItem struct {
	_     struct{} `cbor:",toarray"`
	IPs   [][]byte
	Hosts []string
}

// sliceItem has the endpoints by field. A field is nil if no endpoint has it. Clusters, zones and nodes are numbers of the file's
// symbols, from 1; 0 is none. The numbers of all endpoints are varints (package encoding/binary).
type sliceItem struct {
	_         struct{} `cbor:",toarray"`
	Symbols   []string // those that are not in the file before this item
	Namespace string
	Name      string
	Service   string
	Import    string
	Cluster   uint32
	Ports     []portItem
	Size      int    // bytes of each address, 4 or 16
	Addrs     []byte // of all endpoints
	Names     []string
	Zones     []byte
	Nodes     []byte
	Hints     []byte // numbers of HintSets, from 1; 0 is none
	HintSets  []hintsItem
}

type hintsItem struct {
	_     struct{} `cbor:",toarray"`
	Nodes []uint32
	Zones []uint32
}

type podItem struct {
	_           struct{} `cbor:",toarray"`
	Namespace   string
	Name        string
	IPs         [][]byte
	Labels      map[string]string
	Node        string
	HostNetwork bool
	Ending      bool
	DNS         *podDNSItem
}

type podDNSItem struct {
	_        struct{} `cbor:",toarray"`
	Policy   string
	Searches []string
}

type nodeItem struct {
	_      struct{} `cbor:",toarray"`
	Name   string
	UID    uint64
	Labels []string // keys and values in turn
	CIDRs  [][]byte // nil if unknown
}

// Errors of Read.
var (
	ErrFormat   = errors.New("not a snapshot")
	ErrVersion  = errors.New("the format has another version")
	ErrChecksum = errors.New("the checksum does not match the content")
	ErrCorrupt  = errors.New("corrupt")
)
