package fastpath

import (
	"reflect"
	"slices"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/bind"
)

// What CoreDNS shows to nobody is looked up by name, so an update of CoreDNS could hide it.
func TestConfigsAreFound(t *testing.T) {
	c := caddy.NewTestController("dns", "fastpath")
	config := dnsserver.GetConfig(c)
	if found := configsOf(c.Context()); !slices.Contains(found, config) {
		t.Errorf("configs %v, want %p among them", found, config)
	}
	if configsOf(nil) != nil || instanceOf(nil) != nil || packetConnOf(nil, nil) != nil {
		t.Error("configs, an instance or a socket out of nothing")
	}
	if err := dnsserver.SetDirectives([]string{"bind", pluginName}); err != nil {
		t.Fatal(err)
	}
	inst, err := caddy.Start(caddy.CaddyfileInput{
		Contents: []byte("a.test:0 b.test:0 {\n    bind 127.0.0.1\n    fastpath off\n}\n"), ServerTypeName: serverType,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := inst.Stop(); err != nil {
			t.Error(err)
		}
	}()
	configurations.mu.Lock()
	defer configurations.mu.Unlock()
	for _, conf := range configurations.all {
		configs := configsOf(conf.context)
		if len(configs) == 2 && len(conf.blocks) == 1 {
			if firstOf(configs[1]) != configs[0] || conf.blocks[0].config != configs[0] || configs[1].UDPDecorateWriterFunc == nil {
				t.Errorf("zones %q and %q are not one block", configs[0].Zone, configs[1].Zone)
			}
			for _, pair := range inst.Servers() {
				server := (*dnsserver.Server)(pointerIn(reflect.ValueOf(pair).FieldByName("server")))
				if conn := packetConnOf(conf.instance, server); conn == nil || conn.LocalAddr().String() != pair.LocalAddr().String() {
					t.Errorf("socket of the server at %v: %v", pair.LocalAddr(), conn)
				}
			}
			return
		}
	}
	t.Error("the block with two zones is not found")
}
