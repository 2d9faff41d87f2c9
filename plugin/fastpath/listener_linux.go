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
	"syscall"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/sockets"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// server is a CoreDNS server of one configuration, as its listener uses it.
type server struct {
	*dnsserver.Server
	process *fastPath
	conf    *block.Configuration
	routes  routes
	queue   *admission.Queue // for queries that match no server block
	metrics *listenerMetrics
	blocks  map[string]*servedBlock // by zone
	// kernelForced is set if a server block of the configuration has option kernel force: all servers share the interfaces.
	kernelForced bool
	opcodes      map[int]bool      // accepted besides QUERY and NOTIFY
	generated    []*store.Keyspace // whose answers are valid by Generations
	// answersAtOnce is set when the server is not used any more: no query waits for a name. Guarded by the mutex of heldTable.
	answersAtOnce bool
	references    atomic.Int64 // of readers and of queries in progress
}

// wantsKernel reports whether the kernel answers queries of a server block of the server.
func (s *server) wantsKernel() bool {
	for _, b := range s.blocks {
		if b.inKernel() {
			return true
		}
	}
	return false
}

func (s *server) release() { s.references.Add(-1) }

// listener has the fast path's sockets of an address. A reload replaces its server if the next configuration has one on
// the address.
type listener struct {
	process  *fastPath
	address  string // in CoreDNS's form
	server   atomic.Pointer[server]
	readers  []*reader
	replaced []*server // servers of earlier configurations, guarded by the mutex of fastPath

	kernel atomic.Pointer[kernelListener] // nil while the kernel answers no queries of the listener

	acceptors   []*acceptor  // of TCP, guarded by the mutex of fastPath
	connections atomic.Int64 // over TCP
}

// acquire returns the present server. The caller releases it.
func (l *listener) acquire() *server {
	for {
		s := l.server.Load()
		s.references.Add(1)
		if l.server.Load() == s {
			return s
		}
		s.release() // a reload replaced the server, and may wait for its references
	}
}

// fastPath has what the servers of a process share. It implements block.FastPath and explain.Server.
type fastPath struct {
	places *admission.Places
	// background has the queries that no client waits for. Its limit leaves more than half of the places to queries of clients.
	background *admission.Queue
	workers    workers
	finals     finalQueue
	held       *heldTable
	streams    *streamTable
	kernel     *kernelAnswers

	mu        sync.Mutex
	listeners map[string]*listener // by address
	serving   map[string]*server   // by address, also those without a listener; for explanations
	dropped   map[string]uint64    // datagrams that the kernel dropped on closed sockets, by address
}

func newFastPath() *fastPath {
	places := admission.NewPlaces(admission.DefaultLimits, validity.Now, func(line string) { log.Warning(line) })
	return &fastPath{
		places: places, background: places.NewQueue(block.MaxBackground), finals: newFinalQueue(), held: newHeldTable(maxHeld, maxHeldPerSource),
		streams: newStreamTable(), kernel: newKernelAnswers(),
		listeners: map[string]*listener{}, serving: map[string]*server{}, dropped: map[string]uint64{},
	}
}

// StartBackground implements block.FastPath.
func (f *fastPath) StartBackground(client netip.Addr) (end func(), ok bool) {
	return f.background.TryStart(client)
}

// Serve implements block.FastPath.
func (f *fastPath) Serve(conf *block.Configuration, coreDNS *dnsserver.Server) {
	blocks := blocksOn(f.places, conf, coreDNS)
	address := coreDNS.Addr
	s := &server{
		Server: coreDNS, process: f, conf: conf, kernelForced: conf.KernelForced(), routes: newRoutes(address, blocks),
		queue: f.places.NewQueue(0), metrics: newListenerMetrics(address), blocks: blocks, opcodes: block.Opcodes(coreDNS),
	}
	f.places.Resize(conf.MaxConcurrent())
	f.streams.resize(conf.MaxConnections())
	wanted := logZones(address, blocks)
	if wanted {
		for _, b := range blocks {
			if b.ByGeneration {
				s.generated = append(s.generated, b.Keyspace)
			}
		}
	}
	own := conf.UDPSocket(coreDNS)
	skipPathMTUDiscovery(own)
	switch err := f.serve(address, s, own, conf.TCPListener(coreDNS), wanted); {
	case err != nil && isDetached(own):
		log.Errorf("%s: no UDP until a restart: CoreDNS's own socket is detached, and the fast path cannot start: %v", address, err)
	case err != nil:
		log.Warningf("%s: no fast path, all queries go to the plugin chain: %v", address, err)
	}
}

// skipPathMTUDiscovery sets the option of CoreDNS's own socket, nil for none, for the answers that CoreDNS sends itself.
func skipPathMTUDiscovery(own *net.UDPConn) {
	if own != nil {
		_ = sockets.Use(own, func(s sockets.Socket) error { // an error means that CoreDNS has closed it
			sockets.SkipPathMTUDiscovery(s.FD)
			return nil
		})
	}
}

// storeByGeneration permits storing answers that are valid by Generations alone, and returns a function that undoes it. The mutex
// of fastPath is locked until the server has started: servers with a server block in common start one after the other.
func (s *server) storeByGeneration() (undo func()) {
	var changed []*store.Keyspace
	for _, k := range s.generated {
		if !k.ByGeneration.Swap(true) {
			changed = append(changed, k)
		}
	}
	return func() {
		for _, k := range changed {
			k.ByGeneration.Store(false)
		}
	}
}

// serve makes a server answer queries to its address, over the sockets of the present listener or over new ones. own and tcp are
// CoreDNS's sockets, nil if they are not found. If no fast path is wanted, it opens sockets only if an earlier configuration has
// taken CoreDNS's queries away, which cannot be undone. Answers are stored from the first query on.
func (f *fastPath) serve(address string, s *server, own *net.UDPConn, tcp syscall.Conn, wanted bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serving[address] = s
	undo := s.storeByGeneration()
	if l := f.listeners[address]; l != nil {
		l.replaced = append(l.replaced, l.server.Swap(s))
		f.kernel.serve(l)
		l.detach(own)
		l.serveTCP(tcp)
		return nil
	}
	if !wanted && !isDetached(own) && (tcp == nil || !sockets.IsIdle(tcp)) {
		return nil
	}
	l := &listener{process: f, address: address}
	l.server.Store(s)
	if err := l.open(own); err != nil {
		f.closeSockets(l)
		undo()
		return err
	}
	f.listeners[address] = l
	f.kernel.serve(l)
	l.serveTCP(tcp) // before the first answer over UDP: a client that has got it can open a session
	for _, r := range l.readers {
		go r.run()
	}
	return nil
}

// serveTCP takes CoreDNS's TCP listener over. If that fails, CoreDNS answers over TCP.
func (l *listener) serveTCP(own syscall.Conn) {
	if err := l.takeOver(own); err != nil {
		log.Warningf("%s: no fast path over TCP, CoreDNS accepts the connections: %v", l.address, err)
	}
}

// maxReaders limits the memory of a listener on a machine with many CPUs: a reader has 200 KB, and its socket a buffer. A
// reader answers some 200,000 queries a second.
const maxReaders = 16

// open opens a socket for each CPU that the process may use, and detaches CoreDNS's own socket.
func (l *listener) open(own *net.UDPConn) error {
	if own == nil {
		return errors.New("CoreDNS's own socket is not found")
	}
	all, err := openSockets(own, isWildcard(l.address), min(runtime.GOMAXPROCS(0), maxReaders))
	for _, s := range all {
		l.readers = append(l.readers, newReader(l, s))
	}
	if err != nil {
		return err
	}
	// Where the kernel or a filter of system calls refuses these calls, CoreDNS's socket must stay.
	if err := l.readers[0].try(); err != nil {
		return err
	}
	socketsOpen.WithLabelValues(l.address).Set(float64(len(l.readers)))
	steered.WithLabelValues(l.address).Set(1)
	l.detach(own)
	return nil
}

// detach detaches CoreDNS's own socket, unless it is inherited from a configuration that has done so.
func (l *listener) detach(own *net.UDPConn) {
	if own == nil || isDetached(own) {
		return
	}
	if err := sockets.Use(own, sockets.Socket.Detach); err != nil {
		steered.WithLabelValues(l.address).Set(0)
		log.Warningf("%s: CoreDNS's own socket is not detached, its share of the datagrams costs more CPU time: %v", l.address, err)
	}
}

// isDetached reports whether CoreDNS's own socket is detached; false for nil.
func isDetached(own *net.UDPConn) (detached bool) {
	if own != nil {
		_ = sockets.Use(own, func(s sockets.Socket) error { // an error means that CoreDNS has closed it
			detached = s.Detached()
			return nil
		})
	}
	return detached
}

// isWildcard reports whether an address in CoreDNS's form means all addresses of the machine.
func isWildcard(address string) bool {
	host, _, err := net.SplitHostPort(strings.TrimPrefix(address, transport.DNS+"://"))
	a, _ := netip.ParseAddr(host)
	return err == nil && (host == "" || a.IsUnspecified())
}

// Limits of the time that a reload or the exit takes.
const (
	stopTimeout  = 5 * time.Second       // as CoreDNS's for its queries
	deliveryTime = 20 * time.Millisecond // of a datagram between the kernel's choice of a socket and the socket's queue
)

// awaitUntilTimeout polls a condition until it is met or stopTimeout has passed.
func awaitUntilTimeout(met func() bool) {
	for end := time.Now().Add(stopTimeout); !met() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

// Stop implements block.FastPath. CoreDNS starts to serve asynchronously, so the next configuration may take over
// listeners after the callbacks that end the present one.
func (f *fastPath) Stop(next *block.Configuration) {
	if next == nil {
		f.kernel.exit()
	} else {
		addresses := next.UDPAddresses()
		awaitUntilTimeout(func() bool { return f.hasTakenOver(next, addresses) })
	}
	var closing []*listener
	var servers []*server
	f.mu.Lock()
	maps.DeleteFunc(f.serving, func(_ string, s *server) bool { return s.conf != next })
	for address, l := range f.listeners {
		servers = append(servers, l.replaced...)
		l.replaced = nil
		if l.server.Load().conf == next {
			continue
		}
		closing = append(closing, l)
		delete(f.listeners, address)
		for _, reader := range l.readers {
			f.dropped[address] += reader.socket.drops()
		}
	}
	f.mu.Unlock()
	f.kernel.remove(closing)
	if next != nil && len(closing)+len(servers) > 0 {
		push.Process.Revoke() // the data of answers of the replaced servers are not watched any more
	}
	var waiting sync.WaitGroup
	for _, l := range closing {
		f.held.releaseServer(l.server.Load())
		waiting.Go(l.finish)
	}
	for _, s := range servers {
		f.held.releaseServer(s)
		waiting.Go(s.awaitQueries)
	}
	waiting.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range closing {
		f.closeSockets(l)
	}
}

// hasTakenOver reports whether a configuration has taken over every listener on its addresses.
func (f *fastPath) hasTakenOver(conf *block.Configuration, addresses []string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(addresses, func(address string) bool {
		l := f.listeners[address]
		return l != nil && l.server.Load().conf != conf
	})
}

// awaitQueries waits until all queries of a server that is not used any more are answered.
func (s *server) awaitQueries() {
	awaitUntilTimeout(func() bool { return s.references.Load() <= 0 })
}

// finish ends a listener when the datagrams that it has received are answered.
func (l *listener) finish() {
	for _, r := range l.readers {
		_ = sockets.Use(r.socket.conn, sockets.Socket.Detach) // after a failure, datagrams arrive until the socket is closed
	}
	var streams sync.WaitGroup
	streams.Go(l.drainStreams)
	time.Sleep(deliveryTime)
	for _, r := range l.readers {
		r.finish()
	}
	streams.Wait()
	l.server.Load().awaitQueries()
}

// closeSockets closes the sockets of a listener. The mutex is locked.
func (f *fastPath) closeSockets(l *listener) {
	for _, reader := range l.readers {
		reader.socket.close()
	}
	if f.listeners[l.address] == nil {
		socketsOpen.WithLabelValues(l.address).Set(0)
	}
}
