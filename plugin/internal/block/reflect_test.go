package block

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
)

// testDirective is a plugin without a handler that calls Of: blocktest [fail].
const testDirective = "blocktest"

func init() {
	plugin.Register(testDirective, func(c *caddy.Controller) error {
		Of(c)
		c.Next()
		if c.NextArg() {
			return errors.New("the configuration is refused")
		}
		return nil
	})
}

// TestFields checks that this version of CoreDNS has every field that the package reads, and that a missing field or one
// of another type is reported.
func TestFields(t *testing.T) {
	c := caddy.NewTestController("dns", "")
	all := fields(c.Context())
	if lacks := missing(all); len(lacks) > 0 {
		t.Errorf("missing: %q", lacks)
	}
	type other struct{ configs, connPolicy int }
	for i := range all {
		all[i].owner = reflect.TypeFor[other]()
	}
	if lacks := missing(all); len(lacks) != len(all) || lacks[0] != "block.other.configs (no fast path, and one server block is assumed)" {
		t.Errorf("missing of another type: %q", lacks)
	}
	if lacks := missing(fields(nil)); len(lacks) != 1 {
		t.Errorf("missing without a context: %q", lacks)
	}
}

// TestLookups starts a server block with two zones and looks up its Configs, its server and its socket.
func TestLookups(t *testing.T) {
	c := caddy.NewTestController("dns", "")
	config := dnsserver.GetConfig(c)
	if found := configsOf(c.Context()); !slices.Contains(found, config) {
		t.Errorf("configs %v, want %p among them", found, config)
	}
	if configsOf(nil) != nil || instanceOf(nil) != nil || packetConnOf(nil, nil) != nil {
		t.Error("configs, an instance or a socket without a context")
	}
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", testDirective}))
	inst, err := caddy.Start(caddy.CaddyfileInput{
		Contents: []byte("a.test:0 b.test:0 {\n    bind 127.0.0.1\n    " + testDirective + "\n}\n"), ServerTypeName: "dns",
	})
	kit.Must(t, err)
	defer func() {
		if err := inst.Stop(); err != nil {
			t.Error(err)
		}
	}()
	configurations.mu.Lock()
	defer configurations.mu.Unlock()
	i := slices.IndexFunc(configurations.all, func(conf *Configuration) bool {
		return len(configsOf(conf.context)) == 2 && len(conf.blocks) == 1
	})
	if i < 0 {
		t.Fatal("the block with two zones is not found")
	}
	conf := configurations.all[i]
	configs := configsOf(conf.context)
	if firstOf(configs[1]) != configs[0] || conf.blocks[0].config != configs[0] || configs[1].UDPDecorateWriterFunc == nil {
		t.Errorf("zones %q and %q are not one block", configs[0].Zone, configs[1].Zone)
	}
	for _, pair := range inst.Servers() {
		server := (*dnsserver.Server)(pointerIn(reflect.ValueOf(pair).FieldByName("server")))
		if conn := conf.UDPSocket(server); conn == nil || conn.LocalAddr().String() != pair.LocalAddr().String() {
			t.Errorf("socket of the server at %v: %v", pair.LocalAddr(), conn)
		}
		if zones := conf.ServerZones(server.Addr); len(zones) != 2 || zones[0].Block != conf.blocks[0] || zones[1].Block != conf.blocks[0] {
			t.Errorf("zones of the server %s: %+v", server.Addr, zones)
		}
	}
}

func TestMaxConcurrent(t *testing.T) {
	conf := &Configuration{blocks: []*Block{{}, {MaxConcurrent: 5}, {MaxConcurrent: 2}}}
	if got := conf.MaxConcurrent(); got != 5 {
		t.Errorf("got %d, want that of the second block, 5", got)
	}
}
