package fastpath

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// service is what answers on a listener: a server of one configuration.
type service struct {
	conf    *block.Configuration
	server  *dnsserver.Server
	routes  routes
	chain   *chain // for queries whose name leads nowhere
	metrics *listenerMetrics
	opcodes map[int]bool // that are accepted besides QUERY and NOTIFY
	held    atomic.Int64 // readers and queries that are not done with it
}

func (s *service) release() { s.held.Add(-1) }

// listener is the fast path of an address. It stays through a reload if the next configuration has a
// server there.
type listener struct {
	address string // as CoreDNS writes it
	service atomic.Pointer[service]
	readers []*reader

	previous []*service // what has answered, guarded by the registry's mutex
}

// acquire returns what answers now; it has to be released.
func (l *listener) acquire() *service {
	for {
		s := l.service.Load()
		s.held.Add(1)
		if l.service.Load() == s {
			return s
		}
		s.release() // somebody waits for it to be nobody's
	}
}

// registry has the listeners of the process, by address.
type registry struct {
	mu      sync.Mutex
	all     map[string]*listener
	coming  map[string]*block.Configuration // that will have a listener on an address
	dropped map[string]uint64               // by the kernel, on sockets that are closed
}

var listeners = &registry{all: map[string]*listener{}, coming: map[string]*block.Configuration{}, dropped: map[string]uint64{}}

// Serve implements block.FastPath.
func (fastPath) Serve(conf *block.Configuration, server *dnsserver.Server) {
	uses := usesOn(conf, server)
	s := &service{
		conf: conf, server: server, routes: newRoutes(server, uses),
		chain: newChain(0), metrics: newListenerMetrics(server.Addr), opcodes: block.Opcodes(server),
	}
	queries.resize(conf.MaxConcurrent())
	wanted := describe(server.Addr, uses)
	own := duplicate(conf.UDPSocket(server))
	if own != nil {
		defer own.Close()
	}
	switch has, err := listeners.enter(server.Addr, s, own, wanted); {
	case err != nil && own != nil && own.Detached():
		log.Errorf("No UDP on %s until a restart: the server's socket was detached for the fast path, and that cannot start: %v", server.Addr, err)
	case err != nil:
		log.Warningf("No fast path on %s, the server answers alone: %v", server.Addr, err)
	case has && wanted:
		for _, u := range uses {
			if u.ByGeneration {
				u.Keyspace.ByGeneration.Store(true)
			}
		}
	}
}

// enter makes a service answer on its address, and reports whether it does. Where no fast path is wanted, it does so
// only if CoreDNS's own socket is detached, which cannot be undone (Linux keeps the peer of an IPv6 socket): the
// listener of the configuration before then stays, or another one is opened. own is the server's socket, nil if it is not
// found.
func (r *registry) enter(address string, s *service, own *sockets.Socket, wanted bool) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.coming[address] == s.conf {
		delete(r.coming, address)
	}
	l := r.all[address]
	if l != nil {
		l.previous = append(l.previous, l.service.Swap(s))
		if own != nil {
			l.detach(own)
		}
		return true, nil
	}
	if !wanted && (own == nil || !own.Detached()) {
		return false, nil
	}
	if own == nil {
		return false, errors.New("the server's own socket is not found")
	}
	l = &listener{address: address}
	if err := l.open(own); err != nil {
		r.release(l)
		return false, err
	}
	l.service.Store(s)
	r.all[address] = l
	for _, r := range l.readers {
		go r.run()
	}
	return true, nil
}

// open opens the sockets of the readers, one for each CPU that the process may use, and detaches CoreDNS's.
func (l *listener) open(own *sockets.Socket) error {
	wildcard := isWildcard(l.address)
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
		s, err := open(own.FD, wildcard)
		if err != nil {
			return err
		}
		l.readers = append(l.readers, newReader(l, s))
	}
	// Where the kernel or a filter of system calls refuses, CoreDNS's socket has to stay.
	if err := l.readers[0].try(); err != nil {
		return err
	}
	socketsOpen.WithLabelValues(l.address).Set(float64(len(l.readers)))
	steered.WithLabelValues(l.address).Set(1)
	l.detach(own)
	return nil
}

// detach detaches CoreDNS's socket, unless the configuration before has done so: a reload passes sockets on.
func (l *listener) detach(own *sockets.Socket) {
	if own.Detached() {
		return
	}
	if err := own.Detach(); err != nil {
		steered.WithLabelValues(l.address).Set(0)
		log.Warningf("The kernel gives CoreDNS's own socket on %s a share of the datagrams, which costs CPU time: %v", l.address, err)
	}
}

// maxReaders bounds the memory of a listener on a machine with many CPUs: each reader has 200 KB, and its
// socket a buffer. A reader answers some 200,000 queries a second.
const maxReaders = 16

// isWildcard reports whether a server has all addresses of the machine, given its address as CoreDNS writes it.
func isWildcard(address string) bool {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(address, transport.DNS+"://"))
	a, _ := netip.ParseAddr(host)
	return err == nil && (host == "" || a.IsUnspecified())
}

// Announce implements block.FastPath. CoreDNS begins to serve the addresses some time after that, maybe after the
// previous configuration has ended.
func (fastPath) Announce(conf *block.Configuration) {
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	for _, address := range conf.UDPAddresses() {
		listeners.coming[address] = conf
	}
}

// Retain implements block.FastPath.
func (fastPath) Retain(stays *block.Configuration) {
	queries.resize(stays.MaxConcurrent())
	r := listeners
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.coming, func(_ string, conf *block.Configuration) bool { return conf != stays })
}

// Leave implements block.FastPath.
func (fastPath) Leave(ends func(*block.Configuration) bool, reloading bool) {
	listeners.leave(ends, reloading)
}

// awaitSuccessors waits until the next configuration has taken over the listeners that it will have.
func (r *registry) awaitSuccessors(ends func(*block.Configuration) bool) {
	awaited := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for address, l := range r.all {
			if next := r.coming[address]; ends(l.service.Load().conf) && next != nil && !ends(next) {
				return true
			}
		}
		return false
	}
	for end := time.Now().Add(longest); awaited() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// leave ends the listeners that configurations have which end, and no other has taken over, and waits
// for the queries that they have received.
func (r *registry) leave(ends func(*block.Configuration) bool, reloading bool) {
	if reloading {
		r.awaitSuccessors(ends)
	}
	r.mu.Lock()
	var left []*listener
	var services []*service
	for address, l := range r.all {
		if ends(l.service.Load().conf) {
			left = append(left, l)
			delete(r.all, address)
			for _, reader := range l.readers {
				r.dropped[address] += reader.socket.drops()
			}
		}
		l.previous = slices.DeleteFunc(l.previous, func(s *service) bool {
			if ends(s.conf) {
				services = append(services, s)
			}
			return ends(s.conf)
		})
	}
	r.mu.Unlock()
	var leaving sync.WaitGroup
	for _, l := range left {
		leaving.Go(l.close)
	}
	for _, s := range services {
		leaving.Go(s.await)
	}
	leaving.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range left {
		r.release(l)
	}
}

// Times of the end.
const (
	settle  = 20 * time.Millisecond // a datagram may be between the choice of a socket and its queue
	longest = 5 * time.Second       // as long as CoreDNS waits for its queries
)

// await waits until every query is answered that the service has taken.
func (s *service) await() {
	for end := time.Now().Add(longest); s.held.Load() > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
}

// close ends a listener: what has arrived is answered.
func (l *listener) close() {
	for _, r := range l.readers {
		r.socket.detach()
	}
	time.Sleep(settle)
	for _, r := range l.readers {
		r.finish()
	}
	l.service.Load().await()
}

// release closes what open has opened. The mutex is held.
func (r *registry) release(l *listener) {
	for _, reader := range l.readers {
		_ = reader.socket.file.Close()
	}
	if r.all[l.address] == nil {
		socketsOpen.WithLabelValues(l.address).Set(0)
	}
}
