package fastpath

import (
	"net"
	"reflect"
	"slices"
	"sync"
	"unsafe"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/transport"
)

// The fast path has to know of every server block: names of one without answers to keep must not be
// answered from another, and a listener has to be handed over to a configuration that keeps nothing. So
// each Corefile is looked at when its directives have been read up to this one, used or not.
func init() {
	caddy.RegisterParsingCallback(serverType, pluginName, func(c caddy.Context) error {
		configurations.of(c)
		return nil
	})
	caddy.RegisterEventHook(pluginName, func(event caddy.EventName, _ any) error {
		if event == caddy.InstanceStartupEvent {
			configurations.started()
		}
		return nil
	})
}

const serverType = "dns"

// configurations are those of the process: one, and a second one while it reloads.
var configurations = &configurationList{}

type configurationList struct {
	mu  sync.Mutex
	all []*configuration
}

// of returns the configuration that is being read, and has it called when its servers begin to serve
// datagrams.
func (l *configurationList) of(context caddy.Context) *configuration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conf := range l.all {
		if conf.context == context {
			return conf
		}
	}
	conf := &configuration{context: context, instance: instanceOf(context)}
	l.all = append(l.all, conf)
	for _, config := range configsOf(context) {
		if config.Transport == transport.DNS || config.Transport == "" { // none is a test's
			config.UDPDecorateWriterFunc = conf.serve
		}
	}
	conf.announce()
	return conf
}

// started is called when a configuration has started, the last one that was read. What has no plugin to
// tell it that it ends, ends now.
func (l *configurationList) started() {
	l.mu.Lock()
	if len(l.all) > 0 {
		l.all = l.all[len(l.all)-1:]
	}
	latest := slices.Clone(l.all)
	l.mu.Unlock()
	listeners.leave(func(conf *configuration) bool { return !slices.Contains(latest, conf) }, true)
}

// stays is called when a configuration stays since the next one could not start.
func (l *configurationList) stays(conf *configuration) {
	l.mu.Lock()
	l.all = []*configuration{conf}
	l.mu.Unlock()
	listeners.forget(conf)
}

func (l *configurationList) remove(conf *configuration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, other := range l.all {
		if other == conf {
			l.all = append(l.all[:i:i], l.all[i+1:]...)
			return
		}
	}
}

// configsOf returns what CoreDNS has read for each key of each server block. It shows them to nobody, so
// they are looked up by name; a test holds that they are found.
func configsOf(context caddy.Context) (configs []*dnsserver.Config) {
	v := reflect.Indirect(reflect.ValueOf(context))
	if v.Kind() != reflect.Struct {
		return nil
	}
	field := v.FieldByName("configs")
	if !field.IsValid() || field.Type() != reflect.TypeFor[[]*dnsserver.Config]() {
		return nil
	}
	for i := range field.Len() {
		configs = append(configs, (*dnsserver.Config)(field.Index(i).UnsafePointer()))
	}
	return configs
}

// firstOf returns the Config of the first key of a server block, which has its plugins and addresses.
func firstOf(config *dnsserver.Config) *dnsserver.Config {
	field := reflect.ValueOf(config).Elem().FieldByName("firstConfigInBlock")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*dnsserver.Config]() || field.IsNil() {
		return config // of a test
	}
	return (*dnsserver.Config)(unsafe.Pointer(field.Pointer()))
}

// instanceOf returns the instance that a context belongs to, nil in a test without one. It is called while the
// directives are read: no instance ends then.
func instanceOf(context caddy.Context) *caddy.Instance {
	wanted := pointerIn(reflect.ValueOf(&context).Elem())
	for _, inst := range caddy.Instances() {
		if wanted != nil && pointerIn(reflect.ValueOf(inst).Elem().FieldByName("context")) == wanted {
			return inst
		}
	}
	return nil
}

// packetConnOf returns the UDP socket that an instance has for a server, nil if there is none or if it is of another
// kind, such as with plugin proxyproto. The instance has to have opened its sockets.
func packetConnOf(inst *caddy.Instance, server *dnsserver.Server) *net.UDPConn {
	if inst == nil {
		return nil
	}
	for _, pair := range inst.Servers() {
		v := reflect.ValueOf(pair)
		packet := v.FieldByName("packet")
		if pointerIn(v.FieldByName("server")) == unsafe.Pointer(server) && pointerIn(packet) != nil &&
			packet.Elem().Type() == reflect.TypeFor[*net.UDPConn]() {
			return (*net.UDPConn)(pointerIn(packet))
		}
	}
	return nil
}

// pointerIn returns the pointer that an interface has, nil for another value.
func pointerIn(v reflect.Value) unsafe.Pointer {
	if v.Kind() != reflect.Interface || v.Elem().Kind() != reflect.Pointer {
		return nil
	}
	return v.Elem().UnsafePointer()
}
