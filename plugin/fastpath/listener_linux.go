package fastpath

import (
	"errors"
	"net/netip"
	"runtime"
	"slices"
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
	metrics *listenerMetrics
	held    atomic.Int64 // readers and queries that are not done with it
}

func (s *service) release() { s.held.Add(-1) }

// listener is the fast path of an address. It stays through a reload if the next configuration has a
// server there.
type listener struct {
	address string // as CoreDNS writes it
	service atomic.Pointer[service]
	chain   *chain
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
	dropped map[string]uint64 // by the kernel, on sockets that are closed
}

var listeners = &registry{all: map[string]*listener{}, dropped: map[string]uint64{}}

// serve is called when a server of the configuration begins to serve datagrams. It decorates nothing.
func (conf *configuration) serve(server *dnsserver.Server) dns.DecorateWriter {
	uses := conf.usesOn(server)
	if !describe(server.Addr, uses) {
		return nil
	}
	s := &service{conf: conf, server: server, routes: newRoutes(server, uses), metrics: newListenerMetrics(server.Addr)}
	if err := listeners.enter(server.Addr, s, mostOf(uses)); err != nil {
		log.Warningf("No fast path on %s, the server answers alone: %v", server.Addr, err)
		return nil
	}
	for _, u := range uses {
		if u.byGeneration {
			u.Space.ByGeneration.Store(true)
		}
	}
	return nil
}

// enter has a service answer on its address.
func (r *registry) enter(address string, s *service, most int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.all[address]
	if l != nil {
		l.chain.setMost(most)
		l.previous = append(l.previous, l.service.Swap(s))
		return nil
	}
	l = &listener{address: address, chain: newChain(most)}
	if err := l.open(); err != nil {
		l.release()
		return err
	}
	l.service.Store(s)
	r.all[address] = l
	for _, r := range l.readers {
		go r.run()
	}
	return nil
}

// open opens the sockets, one for each CPU that the process may use, and takes CoreDNS's out.
func (l *listener) open() error {
	if l.servers = serverSockets(l.address); len(l.servers) == 0 {
		return errors.New("the server's own socket is not found")
	}
	for range runtime.GOMAXPROCS(0) {
		s, err := open(l.servers[0].FD)
		if err != nil {
			return err
		}
		l.readers = append(l.readers, newReader(l, s))
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

// serverSockets returns CoreDNS's own sockets of an address.
func serverSockets(address string) []sockets.Socket {
	text := strings.TrimPrefix(address, transport.DNS+"://")
	if strings.HasPrefix(text, ":") {
		text = "[::]" + text
	}
	wanted, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil
	}
	wanted = netip.AddrPortFrom(wanted.Addr().WithZone(""), wanted.Port())
	own := sockets.Own(func(a netip.AddrPort) bool {
		// Go takes a socket of both families for an address that is not specified, where there is IPv6.
		return a == wanted || a.Port() == wanted.Port() && a.Addr().IsUnspecified() && wanted.Addr().IsUnspecified()
	})
	var datagrams []sockets.Socket
	for _, s := range own {
		if s.Listener {
			s.Close()
			continue
		}
		datagrams = append(datagrams, s)
	}
	return datagrams
}

// leave ends the listeners that a configuration has and no other has taken over, and waits for the
// queries that it has received. In a reload CoreDNS's own sockets take over what is left.
func (r *registry) leave(conf *configuration, reloading bool) {
	r.mu.Lock()
	var left []*listener
	var services []*service
	for address, l := range r.all {
		if l.service.Load().conf == conf {
			left = append(left, l)
			delete(r.all, address)
			for _, reader := range l.readers {
				r.dropped[address] += reader.socket.drops()
			}
		}
		l.previous = slices.DeleteFunc(l.previous, func(s *service) bool {
			if s.conf == conf {
				services = append(services, s)
			}
			return s.conf == conf
		})
	}
	r.mu.Unlock()
	var leaving sync.WaitGroup
	for _, l := range left {
		leaving.Go(func() { l.close(reloading) })
	}
	for _, s := range services {
		leaving.Go(s.await)
	}
	leaving.Wait()
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
func (l *listener) close(reloading bool) {
	if reloading {
		for _, s := range l.servers {
			_ = s.Attach() // where it was not detached, there is nothing to undo
		}
	}
	for _, r := range l.readers {
		r.socket.detach()
	}
	time.Sleep(settle)
	for _, r := range l.readers {
		r.finish()
	}
	l.service.Load().await()
	l.release()
}

// release closes what open has opened.
func (l *listener) release() {
	for _, r := range l.readers {
		_ = r.socket.file.Close()
	}
	for _, s := range l.servers {
		s.Close()
	}
	socketsOpen.WithLabelValues(l.address).Set(0)
}
