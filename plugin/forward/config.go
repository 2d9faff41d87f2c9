package forward

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// config is a stanza of the Corefile.
type config struct {
	at     corefile.Position // the line where the stanza begins
	from   string            // the zone whose queries are forwarded, normalized
	except []string          // zones below from whose queries are not forwarded, normalized
	to     []target          // in the order of the Corefile

	blockZones   []string // of the server block, normalized; none in tests
	toClusterDNS bool     // the upstreams are cluster DNS: no name leaks
	private      privateNames

	forceTCP    bool
	preferUDP   bool
	fallbackUDP bool // query over UDP where TCP fails

	caller   []byte // EDNS option in wire form with the name of the caller's node, for every query; nil is none
	coherent bool   // request notification of the answers that end

	timeout     time.Duration // of one query, with all its attempts
	readTimeout time.Duration // of one upstream, before another is queried
	hedge       time.Duration // after which another upstream is queried too; 0 is never

	expire         time.Duration // after which an idle connection is closed
	maxAge         time.Duration // after which a connection gets no more queries; 0 is never
	maxIdle        int           // limit of idle connections to an upstream; 0 is none
	maxInFlight    int           // limit of unanswered queries on one connection
	maxConnections int           // limit of connections to an upstream that accepts several queries on each

	maxFails       uint32        // failed checks after which an upstream is unhealthy; 0 is never
	attempts       int           // failed attempts that end a query; 0 is no limit, unset twice the number of upstreams
	checkEvery     time.Duration // between checks of an upstream that has failed
	checkName      string        // the name in the query of a check
	checkRecursion bool          // whether a check has the flag RD

	maxConcurrent int // limit of queries in progress; 0 is none
	policy        policy
	next          []int // response codes after which the next stanza gets the query
	nextOnNodata  bool
	failover      []int // response codes after which another upstream is queried
	failfast      bool  // whether queries fail at once while all upstreams are unhealthy

	tls           *tls.Config
	tlsServerName string
	dohMethod     string
	source        net.IP   // nil is the kernel's choice
	resolver      []string // host:port of the resolvers of upstreams' names; none is the system's
}

// unset is the value of config.attempts without the option.
const unset = -1

// target is one TO of a stanza: an address, or a name or a file with addresses.
type target struct {
	text     string // as in the Corefile
	endpoint endpoint
	file     string   // a resolv.conf
	host     hostname // of an upstream
}

// protocol returns the protocol of the upstreams.
func (t *target) protocol() string {
	if t.host.name != "" {
		return t.host.endpoint.protocol
	}
	return t.endpoint.protocol
}

// hostname is an upstream by name.
type hostname struct {
	name     string // fully qualified
	port     string
	endpoint endpoint // without an address
}

// endpoint is one upstream server.
type endpoint struct {
	protocol   string // transport.DNS, transport.TLS, transport.QUIC or transport.HTTPS
	address    string // host:port
	serverName string // the name of its certificate, after % in the Corefile
}
