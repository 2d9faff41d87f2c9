package topology

import (
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

func TestOf(t *testing.T) {
	keys, defaults := symbols(hostname), symbols(zone, "*")
	everything := &index.Topology{Keys: keys, Local: true, Auto: true, Distribution: index.PreferSameNode}
	tests := []struct {
		name     string
		kind     index.Kind
		topology *index.Topology
		defaults []index.Symbol
		want     string
	}{
		{name: "nothing said", kind: index.Headless, want: "none"},
		{name: "nothing said, with default keys", kind: index.Headless, defaults: defaults, want: "default"},
		{name: "a topology that says nothing", kind: index.Headless, topology: &index.Topology{}, want: "none"},
		{name: "a topology that says nothing, with default keys", kind: index.Headless, topology: &index.Topology{}, defaults: defaults, want: "default"},
		{name: "no keys are as no annotation", kind: index.Headless, topology: &index.Topology{Keys: []index.Symbol{}}, defaults: defaults, want: "default"},
		{name: "the annotation is above all", kind: index.Headless, topology: everything, defaults: defaults, want: "annotation"},
		{name: "Local is above Auto and trafficDistribution", kind: index.Headless, topology: &index.Topology{Local: true, Auto: true, Distribution: index.PreferSameZone}, defaults: defaults, want: "local"},
		{name: "Auto is above trafficDistribution", kind: index.Headless, topology: &index.Topology{Auto: true, Distribution: index.PreferSameZone}, defaults: defaults, want: "hints"},
		{name: "PreferSameZone is above default keys", kind: index.Headless, topology: &index.Topology{Distribution: index.PreferSameZone}, defaults: defaults, want: "preference"},
		{name: "PreferSameNode is above default keys", kind: index.Headless, topology: &index.Topology{Distribution: index.PreferSameNode}, defaults: defaults, want: "preference"},
		{name: "ClusterIP is never filtered", kind: index.ClusterIP, topology: everything, defaults: defaults, want: "none"},
		{name: "ExternalName is never filtered", kind: index.ExternalName, topology: everything, defaults: defaults, want: "none"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := PolicyOf(&index.Service{Kind: tt.kind, Topology: tt.topology}, tt.defaults)
			if got := p.String(); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			if got, want := p.Filters(), tt.want != "none"; got != want {
				t.Errorf("Filters() = %t, want %t", got, want)
			}
		})
	}
}

func TestKnown(t *testing.T) {
	tests := []struct {
		name   string
		caller Caller
		want   bool
	}{
		{"nothing is known", Caller{}, false},
		{"a zone alone", Caller{Zone: index.NewSymbol("a")}, false},
		{"a node's name", Caller{Name: index.NewSymbol("a1")}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.caller.Known(); got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
			}
		})
	}
}
