package forward

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// config is what a stanza of the Corefile says.
type config struct {
	at     corefile.Position // the line where the stanza begins
	from   string            // the zone whose queries are forwarded, normalized
	except []string          // zones of it whose queries are not, normalized
	to     []target          // in the order of the Corefile

	forceTCP    bool
	preferUDP   bool
	fallbackUDP bool // from TCP that does not work

	caller dns.EDNS0 // the option that says who is calling, of every query; nil is none

	timeout     time.Duration // for all that is done for one query
	readTimeout time.Duration // for an answer of one upstream, before another is asked
	hedge       time.Duration // after which another upstream is asked too; 0 is never

	expire         time.Duration // after which idle connections are closed
	maxAge         time.Duration // after which connections take no more queries; 0 is never
	maxIdle        int           // idle connections to an upstream that are kept; 0 is any number
	maxInFlight    int           // queries on their way on one connection
	maxConnections int           // to an upstream, while it takes many queries on each

	maxFails       uint32        // failed checks up to which an upstream counts as healthy; 0 is any number
	attempts       int           // failed attempts that end a query; 0 is any number, unsaid twice the upstreams
	checkEvery     time.Duration // between checks of an upstream that has failed
	checkName      string        // what a check asks for
	checkRecursion bool          // whether a check asks for recursion

	maxConcurrent int64 // queries that are worked on; 0 is any number
	policy        policy
	next          []int // response codes that the next stanza gets the query for
	nextOnNodata  bool
	failover      []int // response codes that another upstream is asked for
	failfast      bool  // whether queries fail at once while all upstreams are down

	tls           *tls.Config
	tlsServerName string
	dohMethod     string
	source        net.IP   // nil is the kernel's choice
	resolver      []string // host:port of those who are asked for the addresses of upstreams; none is the system's
}

// unsaid is the value of config.attempts where the Corefile says nothing.
const unsaid = -1

// target is one TO of a stanza: an address, or a name or a file by which addresses are found.
type target struct {
	text     string // as in the Corefile
	endpoint endpoint
	file     string   // a resolv.conf
	host     hostname // of an upstream
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
	serverName string // what its certificate has to be for, if the Corefile says it with %
}

// policy is the order in which upstreams are asked. It leaves the slice that it is given as it is.
type policy interface {
	order(all []*upstream) []*upstream
	String() string
}
