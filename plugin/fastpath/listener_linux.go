package fastpath

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/sockets"
)

// service is what answers on a listener: a server of one configuration.
type service struct {
	conf    *configuration
	server  *dnsserver.Server
	routes  routes
	chain   *chain // for queries whose name leads nowhere
	metrics *listenerMetrics
	held    atomic.Int64 // readers and queries that are not done with it
}

func (s *service) release() { s.held.Add(-1) }

// listener is the fast path of an address. It stays through a reload if the next configuration has a
// server there.
type listener struct {
	address string // as CoreDNS writes it
	service atomic.Pointer[service]
	readers []*reader
	servers []sockets.Socket // CoreDNS's own

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
	coming  map[string]*configuration // that will have a listener on an address
	dropped map[string]uint64         // by the kernel, on sockets that are closed
	own     map[uint64]bool           // the inodes of the readers' sockets
}

var listeners = &registry{all: map[string]*listener{}, coming: map[string]*configuration{}, dropped: map[string]uint64{}, own: map[uint64]bool{}}

// serve is called when a server of the configuration begins to serve datagrams. It decorates nothing.
func (conf *configuration) serve(server *dnsserver.Server) dns.DecorateWriter {
	uses := conf.usesOn(server)
	s := &service{
		conf: conf, server: server, routes: newRoutes(server, uses),
		chain: newChain(defaultMost), metrics: newListenerMetrics(server.Addr),
	}
	wanted := describe(server.Addr, uses)
	switch has, err := listeners.enter(server.Addr, s, wanted); {
	case err != nil:
		log.Warningf("No fast path on %s, the server answers alone: %v", server.Addr, err)
	case has && wanted:
		for _, u := range uses {
			if u.byGeneration {
				u.Space.ByGeneration.Store(true)
			}
		}
	}
	return nil
}

// enter has a service answer on its address, and reports whether it does. Without a fast path it only
// takes over a listener that is there: once CoreDNS's own socket is taken out of the kernel's choice, it
// can't be brought back (Linux keeps the peer of an IPv6 socket).
func (r *registry) enter(address string, s *service, wanted bool) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.coming[address] == s.conf {
		delete(r.coming, address)
	}
	l := r.all[address]
	if l != nil {
		l.previous = append(l.previous, l.service.Swap(s))
		return true, nil
	}
	if !wanted {
		return false, nil
	}
	l = &listener{address: address}
	err := l.open(r.own)
	for _, reader := range l.readers {
		r.own[reader.socket.inode] = true
	}
	if err != nil {
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

// open opens the sockets, one for each CPU that the process may use, and takes CoreDNS's out: those on
// the address that are not readers'.
func (l *listener) open(readers map[uint64]bool) error {
	if l.servers = serverSockets(l.address, readers); len(l.servers) == 0 {
		return errors.New("the server's own socket is not found")
	}
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
		s, err := open(l.servers[0].FD)
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
	for _, s := range l.servers {
		if err := s.Detach(); err != nil {
			steered.WithLabelValues(l.address).Set(0)
			log.Warningf("The kernel gives CoreDNS's own socket on %s a share of the datagrams, which costs CPU time: %v", l.address, err)
		}
	}
	return nil
}

// maxReaders bounds the memory of a listener on a machine with many CPUs: each reader has 200 KB, and its
// socket a buffer. A reader answers some 200,000 queries a second.
const maxReaders = 16

// serverSockets returns CoreDNS's own sockets of an address, given the inodes of the readers'.
func serverSockets(address string, readers map[uint64]bool) []sockets.Socket {
	text := strings.TrimPrefix(address, transport.DNS+"://")
	if strings.HasPrefix(text, ":") {
		text = "[::]" + text
	}
	wanted, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil
	}
	if zone := wanted.Addr().Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return nil
		}
		wanted = netip.AddrPortFrom(wanted.Addr().WithZone(strconv.Itoa(i.Index)), wanted.Port())
	}
	own := sockets.Own(func(a netip.AddrPort) bool {
		// Go takes a socket of both families for an address that is not specified, where there is IPv6.
		return a == wanted || a.Port() == wanted.Port() && a.Addr().IsUnspecified() && wanted.Addr().IsUnspecified()
	})
	var datagrams []sockets.Socket
	for _, s := range own {
		if s.Listener || readers[s.Inode()] {
			s.Close()
			continue
		}
		datagrams = append(datagrams, s)
	}
	return datagrams
}

// announce says which addresses the configuration will serve datagrams on. CoreDNS begins to do so some
// time after that, maybe after the configuration before it has ended.
func (conf *configuration) announce() {
	listeners.mu.Lock()
	defer listeners.mu.Unlock()
	for _, config := range configsOf(conf.context) {
		if config.Transport != transport.DNS {
			continue
		}
		for _, host := range firstOf(config).ListenHosts {
			if address := addressOf(config, host); address != "" {
				listeners.coming[address] = conf
			}
		}
	}
}

// forget is called when the configuration stays because the next one could not start.
func (r *registry) forget(stays *configuration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for address, conf := range r.coming {
		if conf != stays {
			delete(r.coming, address)
		}
	}
}

// awaitSuccessors waits until the next configuration has taken over the listeners that it will have.
func (r *registry) awaitSuccessors(ends func(*configuration) bool) {
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
func (r *registry) leave(ends func(*configuration) bool, reloading bool) {
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
		delete(r.own, reader.socket.inode)
		_ = reader.socket.file.Close()
	}
	for _, s := range l.servers {
		s.Close()
	}
	if r.all[l.address] == nil {
		socketsOpen.WithLabelValues(l.address).Set(0)
	}
}
