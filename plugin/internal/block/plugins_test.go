package block

import (
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/autopath"
	"github.com/coredns/coredns/plugin/cache"
	"github.com/coredns/coredns/plugin/whoami"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestReadme compares the known plugins with those that the README of fastpath names.
func TestReadme(t *testing.T) {
	text := kit.Read(t, "../../fastpath/README.md")
	for name := range plugins {
		if !strings.Contains(text, "*"+name+"*") {
			t.Errorf("the README does not name %s", name)
		}
	}
}

// named is a handler of nearside, by its package.
type named struct {
	plugin.Handler
	name string
}

func (n named) Name() string { return n.name }

// TestReplaced has handlers of CoreDNS, some of which nearside has its own of.
func TestReplaced(t *testing.T) {
	for _, c := range []struct {
		name string
		h    plugin.Handler
		want traits
	}{
		{"cache of nearside", named{name: "cache"}, plugins["cache"]},
		{"cache of CoreDNS", &cache.Cache{}, traits{}},
		{"autopath of CoreDNS", &autopath.AutoPath{}, traits{}},
		{"a plugin that only CoreDNS has", whoami.Whoami{}, plugins["whoami"]},
		{"an unknown plugin", named{name: "other"}, traits{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := traitsOf(c.h); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
