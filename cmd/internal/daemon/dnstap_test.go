package daemon

import (
	"slices"
	"testing"

	"github.com/coredns/caddy"
)

// TestDnstapListens has Corefiles with outputs of dnstap.
func TestDnstapListens(t *testing.T) {
	for name, tc := range map[string]struct {
		corefile string
		want     []bool
	}{
		"none":           {". {\nwhoami\n}\n", nil},
		"a connection":   {". {\ndnstap /tmp/listen full\n}\n", []bool{false}},
		"a listener":     {". {\ndnstap listen tcp://127.0.0.1:6000 {\nidentity dnstap\nextra listen\n}\n}\n", []bool{true}},
		"no argument":    {". {\ndnstap\n}\n", []bool{false}},
		"several":        {". {\ndnstap listen /a {\nversion 1\n}\nwhoami\ndnstap /b\n}\nexample.org . {\ndnstap tcp://b:1 full {\nidentity x\n}\ndnstap listen /c\n}\n", []bool{true, false, false, true}},
		"a snippet":      {"(tap) {\ndnstap listen /a\n}\n. {\nimport tap\n}\n", []bool{true}},
		"not a Corefile": {". {\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := caddy.CaddyfileInput{Contents: []byte(tc.corefile), ServerTypeName: serverType}
			if got := dnstapListens(in); !slices.Equal(got, tc.want) {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}
