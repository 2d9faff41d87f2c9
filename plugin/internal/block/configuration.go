package block

import (
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/internal/translation"
)

// Configuration is a Corefile that was read. A reload reads the next one, which may be refused.
type Configuration struct {
	context  caddy.Context
	instance *caddy.Instance // has the servers; nil in a test without servers
	blocks   []*Block
	followed bool // callbacks are registered

	findServers sync.Once
	byAddress   map[string][]Zone              // zones of the servers
	byBlock     map[*dnsserver.Config][]string // zones of the server blocks
}

// configurations are the configurations of the process: the present one, and during a reload the next one.
var configurations = &configurationList{}

type configurationList struct {
	mu  sync.Mutex
	all []*Configuration
}

// Read registers the configuration that CoreDNS is reading, also if no plugin of its blocks calls Of, and corrects plugin dns64 in
// it. It is called after the setup of dns64. The start of the configuration fails if another process listens on its addresses.
func Read(context caddy.Context) {
	configurations.find(context).checkPortsFirst()
	for _, config := range configsOf(context) {
		for i, p := range config.Plugin {
			config.Plugin[i] = translation.Correct(p)
		}
	}
}

// find returns the configuration with a context. The servers of a new one call the fast path when they serve UDP, by
// UDPDecorateWriterFunc of each block's first zone: CoreDNS copies it to the other zones, and ignores it for transports other
// than ordinary DNS.
func (l *configurationList) find(context caddy.Context) *Configuration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conf := range l.all {
		if conf.context == context {
			return conf
		}
	}
	checkOnce(context)
	conf := &Configuration{context: context, instance: instanceOf(context)}
	l.all = append(l.all, conf)
	blocks := map[*dnsserver.Config]bool{}
	for _, config := range configsOf(context) {
		if config.Transport == transport.DNS || config.Transport == "" { // "" in tests
			blocks[firstOf(config)] = true
		}
	}
	for first := range blocks {
		first.UDPDecorateWriterFunc = conf.serve(first.UDPDecorateWriterFunc)
	}
	return conf
}

// serve returns a function for dnsserver.Config.UDPDecorateWriterFunc that notifies the fast path of the server. other is the
// function that was set before, such as plugin shed's, or nil.
func (conf *Configuration) serve(other func(*dnsserver.Server) dns.DecorateWriter) func(*dnsserver.Server) dns.DecorateWriter {
	return func(server *dnsserver.Server) dns.DecorateWriter {
		fastPath.Serve(conf, server)
		if other == nil {
			return nil
		}
		return other(server)
	}
}

// Started is called when the servers of the latest configuration have started. It stops the fast path of earlier
// configurations, unless a plugin of them called Of: then stop has stopped it already.
func Started() {
	l := configurations
	l.mu.Lock()
	l.all = l.all[max(0, len(l.all)-1):]
	l.mu.Unlock()
	fastPath.Stop(l.latest())
}

// latest returns the configuration that was read last, nil without any.
func (l *configurationList) latest() *Configuration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return nil
	}
	return l.all[len(l.all)-1]
}

// follow registers the end of the configuration, once.
func (conf *Configuration) follow(c *caddy.Controller) {
	if conf.followed {
		return
	}
	conf.followed = true
	reload.Follow(c, reload.Owner{Stop: conf.stop, Retain: func() { configurations.retain(conf) }})
}

// retain leaves only the present configuration, after the next one could not start.
func (l *configurationList) retain(present *Configuration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = []*Configuration{present}
}

// stop stops the fast path of the configuration and drops its answers. A refused configuration has only answers that a cache
// has restored.
func (conf *Configuration) stop(end reload.End) error {
	switch end {
	case reload.Replaced:
		fastPath.Stop(configurations.latest())
	case reload.Exit:
		fastPath.Stop(nil)
		conf.exit()
	}
	for _, b := range conf.blocks {
		b.Keyspace.ByGeneration.Store(false)
		b.Keyspace.Drop()
	}
	l := configurations
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *Configuration) bool { return other == conf })
	return nil
}

// exit calls the functions of OnExit, all at the same time: one may wait for a disk.
func (conf *Configuration) exit() {
	var wg sync.WaitGroup
	for _, b := range conf.blocks {
		for _, f := range b.exits {
			wg.Go(f)
		}
	}
	wg.Wait()
}

// MaxConnections returns the highest max_connections of the configuration, for the process and for one client, 0 without
// one.
func (conf *Configuration) MaxConnections() (process, client int) {
	for _, b := range conf.blocks {
		process, client = max(process, b.MaxConnections), max(client, b.MaxClientConnections)
	}
	return process, client
}

// KernelForced reports whether the kernel answers queries of a block also where other programs filter packets.
func (conf *Configuration) KernelForced() bool {
	return slices.ContainsFunc(conf.blocks, func(b *Block) bool { return b.KernelForced })
}

// MaxConcurrent returns the highest max_concurrent of the configuration, 0 without one.
func (conf *Configuration) MaxConcurrent() (highest int) {
	for _, b := range conf.blocks {
		highest = max(highest, b.MaxConcurrent)
	}
	return highest
}

// UDPSocket returns the UDP socket that CoreDNS has opened for a server, nil without one or if another type wraps it, as
// with plugin proxyproto.
func (conf *Configuration) UDPSocket(server *dnsserver.Server) *net.UDPConn {
	return packetConnOf(conf.instance, server)
}

// TCPListener returns the TCP listener that CoreDNS has opened for a server, nil without one or if another type wraps it.
// After a reload, CoreDNS has an idle listener instead of one that was taken over.
func (conf *Configuration) TCPListener(server *dnsserver.Server) syscall.Conn {
	return listenerOf(conf.instance, server)
}

// Zone is a zone of a server.
type Zone struct {
	Name  string
	Block *Block // without a Keyspace if no plugin called Of
}

// ServerZones returns the zones of the server with an address, in CoreDNS's form.
func (conf *Configuration) ServerZones(address string) []Zone { return conf.servers()[address] }

// UDPAddresses returns the addresses of the configuration's servers with transport dns, in CoreDNS's form.
func (conf *Configuration) UDPAddresses() (all []string) {
	for address := range conf.servers() {
		if strings.HasPrefix(address, transport.DNS+"://") {
			all = append(all, address)
		}
	}
	return all
}

// servers returns the zones of all servers by address. It is called when all directives have been read.
func (conf *Configuration) servers() map[string][]Zone {
	conf.findServers.Do(conf.readZones)
	return conf.byAddress
}

// zonesOf returns the zones of a server block, on all servers, when all directives have been read.
func (conf *Configuration) zonesOf(b *Block) []string {
	conf.findServers.Do(conf.readZones)
	return conf.byBlock[b.config]
}

// readZones sets byAddress and byBlock.
func (conf *Configuration) readZones() {
	conf.byAddress, conf.byBlock = map[string][]Zone{}, map[*dnsserver.Config][]string{}
	blocks := map[*dnsserver.Config]*Block{}
	for _, b := range conf.blocks {
		blocks[b.config] = b
	}
	type listener struct{ transport, host, port string }
	addresses := map[listener]string{}
	for _, config := range configsOf(conf.context) {
		first := firstOf(config)
		if blocks[first] == nil {
			blocks[first] = &Block{config: first}
		}
		conf.byBlock[first] = append(conf.byBlock[first], config.Zone)
		for _, host := range first.ListenHosts {
			l := listener{config.Transport, host, config.Port}
			if _, ok := addresses[l]; !ok {
				addresses[l] = addressOf(config, host)
			}
			address, z := addresses[l], Zone{Name: config.Zone, Block: blocks[first]}
			if zones := conf.byAddress[address]; address != "" && (len(zones) == 0 || zones[len(zones)-1] != z) { // two forms of an address
				conf.byAddress[address] = append(zones, z)
			}
		}
	}
}

// addressOf returns the address of a server in CoreDNS's form, with the transport, such as dns://127.0.0.1:53.
func addressOf(config *dnsserver.Config, host string) string {
	a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, config.Port))
	if err != nil {
		return ""
	}
	return config.Transport + "://" + a.String()
}
