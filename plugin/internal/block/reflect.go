package block

import (
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/loadbalance"
	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// field is an unexported field of CoreDNS or caddy that this package reads. Its lookups return a value that disables the
// feature if the field is missing.
type field struct {
	name        string
	owner       reflect.Type
	typeMatches func(reflect.Type) bool
	disabled    string // the features that are disabled without the field
}

// fields returns the fields that the lookups below read, given the context of a Corefile.
func fields(context caddy.Context) []field {
	pair := reflect.TypeFor[caddy.ServerListener]()
	server := reflect.TypeFor[dnsserver.Server]()
	return []field{
		{"configs", structOf(context), isType[[]*dnsserver.Config], "no fast path, and one server block is assumed"},
		{"firstConfigInBlock", reflect.TypeFor[dnsserver.Config](), isType[*dnsserver.Config], "no fast path for server blocks with several zones"},
		{"context", reflect.TypeFor[caddy.Instance](), isKind(reflect.Interface), "no fast path"},
		{"server", pair, isKind(reflect.Interface), "no fast path"},
		{"packet", pair, isKind(reflect.Interface), "no fast path"},
		{"listener", pair, isKind(reflect.Interface), "no fast path over TCP"},
		{"connPolicy", server, isKind(reflect.Func), "no fast path"},
		{"allowedOpcodes", server, func(t reflect.Type) bool { return t.Kind() == reflect.Map && t.Key().Kind() == reflect.Int }, "no fast path"},
		{"shuffle", reflect.TypeFor[loadbalance.LoadBalance](), isKind(reflect.Func), "no fast path with plugin loadbalance"},
	}
}

func isType[T any](t reflect.Type) bool { return t == reflect.TypeFor[T]() }

func isKind(k reflect.Kind) func(reflect.Type) bool {
	return func(t reflect.Type) bool { return t.Kind() == k }
}

func structOf(context caddy.Context) reflect.Type {
	t := reflect.TypeOf(context)
	if t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// missing describes the fields that do not exist or have another type.
func missing(wanted []field) (all []string) {
	for _, f := range wanted {
		if f.owner != nil && f.owner.Kind() == reflect.Struct {
			if found, ok := f.owner.FieldByName(f.name); ok && f.typeMatches(found.Type) {
				continue
			}
		}
		in := "the context of a Corefile"
		if f.owner != nil {
			in = f.owner.String()
		}
		all = append(all, in+"."+f.name+" ("+f.disabled+")")
	}
	return all
}

var checked sync.Once

// checkOnce logs, once in a process, the missing fields.
func checkOnce(context caddy.Context) {
	checked.Do(func() {
		if lacks := missing(fields(context)); len(lacks) > 0 {
			clog.NewWithPlugin("fastpath").Errorf("This version of CoreDNS lacks fields that nearside reads: %s", strings.Join(lacks, ", "))
		}
	})
}

// configsOf returns the Configs of all zones of all server blocks.
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

// firstOf returns the Config of the first zone of a server block, which has the block's plugins and addresses.
func firstOf(config *dnsserver.Config) *dnsserver.Config {
	field := reflect.ValueOf(config).Elem().FieldByName("firstConfigInBlock")
	if !field.IsValid() || field.Type() != reflect.TypeFor[*dnsserver.Config]() || field.IsNil() {
		return config // the field is nil in tests
	}
	return (*dnsserver.Config)(unsafe.Pointer(field.Pointer()))
}

// instanceOf returns the instance of a context, nil in a test without one. It is called while directives are read, when
// caddy removes no instance.
func instanceOf(context caddy.Context) *caddy.Instance {
	wanted := pointerIn(reflect.ValueOf(&context).Elem())
	all := caddy.Instances()
	i := slices.IndexFunc(all, func(inst *caddy.Instance) bool {
		return wanted != nil && pointerIn(reflect.ValueOf(inst).Elem().FieldByName("context")) == wanted
	})
	if i < 0 {
		return nil
	}
	return all[i]
}

// packetConnOf returns the UDP socket that an instance has opened for a server, nil without one.
func packetConnOf(inst *caddy.Instance, server *dnsserver.Server) *net.UDPConn {
	packet := socketOf(inst, server, "packet")
	if pointerIn(packet) == nil || packet.Elem().Type() != reflect.TypeFor[*net.UDPConn]() {
		return nil
	}
	return (*net.UDPConn)(pointerIn(packet))
}

// listenerOf returns the listener of streams that an instance has opened for a server, nil without one.
func listenerOf(inst *caddy.Instance, server *dnsserver.Server) syscall.Conn {
	listener := socketOf(inst, server, "listener")
	if pointerIn(listener) == nil {
		return nil
	}
	switch listener.Elem().Type() {
	case reflect.TypeFor[*net.TCPListener]():
		return (*net.TCPListener)(pointerIn(listener))
	case reflect.TypeFor[*net.UnixListener](): // it was taken over before a reload, see package sockets
		return (*net.UnixListener)(pointerIn(listener))
	}
	return nil
}

// socketOf returns a field of the caddy.ServerListener of a server in an instance, the zero Value without one.
func socketOf(inst *caddy.Instance, server *dnsserver.Server, field string) reflect.Value {
	if inst == nil {
		return reflect.Value{}
	}
	for _, pair := range inst.Servers() {
		v := reflect.ValueOf(pair)
		if pointerIn(v.FieldByName("server")) == unsafe.Pointer(server) {
			return v.FieldByName(field)
		}
	}
	return reflect.Value{}
}

// pointerIn returns the pointer in an interface, nil for another value.
func pointerIn(v reflect.Value) unsafe.Pointer {
	if v.Kind() != reflect.Interface || v.Elem().Kind() != reflect.Pointer {
		return nil
	}
	return v.Elem().UnsafePointer()
}

// Opcodes returns the opcodes that a server accepts besides QUERY and NOTIFY, nil if the field is missing.
func Opcodes(server *dnsserver.Server) map[int]bool {
	allowed := reflect.ValueOf(server).Elem().FieldByName("allowedOpcodes")
	if allowed.Kind() != reflect.Map || allowed.Type().Key().Kind() != reflect.Int {
		return nil
	}
	opcodes := map[int]bool{}
	for _, opcode := range allowed.MapKeys() {
		opcodes[int(opcode.Int())] = true
	}
	return opcodes
}

// hasConnPolicy reports whether a server expects the PROXY protocol, or the field is missing.
func hasConnPolicy(server *dnsserver.Server) bool {
	policy := reflect.ValueOf(server).Elem().FieldByName("connPolicy")
	return policy.Kind() != reflect.Func || !policy.IsNil()
}

// isRoundRobin reports whether loadbalance puts addresses in random order. Its policy is an unexported function, which the
// symbol identifies; an unknown symbol disables the fast path.
func isRoundRobin(h plugin.Handler) bool {
	lb, ok := h.(loadbalance.LoadBalance)
	if !ok {
		return false
	}
	shuffle := reflect.ValueOf(lb).FieldByName("shuffle")
	if !shuffle.IsValid() || shuffle.Kind() != reflect.Func {
		return false
	}
	f := runtime.FuncForPC(shuffle.Pointer())
	return f != nil && strings.HasSuffix(f.Name(), "/loadbalance.randomShuffle")
}
