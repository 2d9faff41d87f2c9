package block

import (
	"net"
	"slices"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
)

// Configuration is one reading of a Corefile, used or not.
type Configuration struct {
	context  caddy.Context
	instance *caddy.Instance // has the servers; nil in a test without any
	blocks   []*Block
	followed bool // callbacks are registered
}

// configurations are those of the process: one, and a second one during a reload.
var configurations = &configurationList{}

type configurationList struct {
	mu  sync.Mutex
	all []*Configuration
}

// Read registers the configuration that CoreDNS is reading, so that blocks without any of our plugins are known too.
func Read(context caddy.Context) { configurations.of(context) }

// of returns the configuration that is being read. Its servers call the fast path when they begin to serve UDP.
func (l *configurationList) of(context caddy.Context) *Configuration {
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
	for _, config := range configsOf(context) {
		if config.Transport == transport.DNS || config.Transport == "" { // "" in tests
			config.UDPDecorateWriterFunc = conf.serve
		}
	}
	fastPath.Announce(conf)
	return conf
}

// serve implements dnsserver.Config.UDPDecorateWriterFunc. It decorates nothing.
func (conf *Configuration) serve(server *dnsserver.Server) dns.DecorateWriter {
	fastPath.Serve(conf, server)
	return nil
}

// Started is called when the servers of the last configuration that was read have started. Earlier configurations end
// then, also those without a plugin that would be called at their end.
func Started() {
	l := configurations
	l.mu.Lock()
	if len(l.all) > 0 {
		l.all = l.all[len(l.all)-1:]
	}
	latest := slices.Clone(l.all)
	l.mu.Unlock()
	fastPath.Leave(func(conf *Configuration) bool { return !slices.Contains(latest, conf) }, true)
}

// follow registers the end of the configuration, once.
func (conf *Configuration) follow(c *caddy.Controller) {
	if conf.followed {
		return
	}
	conf.followed = true
	reload.Follow(c, reload.Owner{
		Stop: func(end reload.End) error {
			if end != reload.Refused { // its listeners and answers were never in use
				conf.end(end == reload.Replaced)
			}
			return nil
		},
		Retain: func() { configurations.retain(conf) },
	})
}

// retain is called when a configuration stays because the next one could not start.
func (l *configurationList) retain(conf *Configuration) {
	l.mu.Lock()
	l.all = []*Configuration{conf}
	l.mu.Unlock()
	fastPath.Retain(conf)
}

// end ends the listeners that no other configuration has taken over, and drops the configuration's answers.
func (conf *Configuration) end(reloading bool) {
	fastPath.Leave(func(other *Configuration) bool { return other == conf }, reloading)
	for _, b := range conf.blocks {
		b.Keyspace.ByGeneration.Store(false)
		answers.Shared.Drop(b.Keyspace)
	}
	l := configurations
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.DeleteFunc(slices.Clone(l.all), func(other *Configuration) bool { return other == conf })
}

// MaxConcurrent returns the highest max_concurrent of the configuration, 0 without one.
func (conf *Configuration) MaxConcurrent() (highest int) {
	for _, b := range conf.blocks {
		highest = max(highest, b.MaxConcurrent)
	}
	return highest
}

// UDPSocket returns the UDP socket that CoreDNS has opened for a server, nil if there is none or if it is of another
// kind, as with plugin proxyproto.
func (conf *Configuration) UDPSocket(server *dnsserver.Server) *net.UDPConn {
	return packetConnOf(conf.instance, server)
}

// Zone is a zone of a server.
type Zone struct {
	Name  string
	Block *Block // without a Keyspace if none of its plugins stores answers
}

// ZonesOn returns the zones of the server with an address, in CoreDNS's form.
func (conf *Configuration) ZonesOn(address string) (zones []Zone) {
	for _, config := range configsOf(conf.context) {
		first := firstOf(config)
		if !slices.ContainsFunc(first.ListenHosts, func(host string) bool { return addressOf(config, host) == address }) {
			continue
		}
		z := Zone{Name: config.Zone, Block: &Block{config: first}}
		if i := slices.IndexFunc(conf.blocks, func(b *Block) bool { return b.config == first }); i >= 0 {
			z.Block = conf.blocks[i]
		}
		zones = append(zones, z)
	}
	return zones
}

// UDPAddresses returns the addresses of the configuration's servers of plain DNS, in CoreDNS's form.
func (conf *Configuration) UDPAddresses() (all []string) {
	for _, config := range configsOf(conf.context) {
		if config.Transport != transport.DNS {
			continue
		}
		for _, host := range firstOf(config).ListenHosts {
			if address := addressOf(config, host); address != "" {
				all = append(all, address)
			}
		}
	}
	return all
}

// addressOf returns the address of a server in CoreDNS's form, with its transport.
func addressOf(config *dnsserver.Config, host string) string {
	a, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(host, config.Port))
	if err != nil {
		return ""
	}
	return config.Transport + "://" + a.String()
}
