// Package stock runs CoreDNS's forward on the stanzas of package stanzas. Input: the stanzas; output: a file with the
// error of each. It is a separate program: two plugins named forward cannot be linked into one.
package stock

import (
	"os"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/forward"

	"github.com/nearside-dns/nearside/test/forward/stanzas"
	"github.com/nearside-dns/nearside/test/kit"
)

// variable is the environment variable with the path of the output: an error for each stanza, empty for none.
const variable = "NEARSIDE_STANZAS"

func TestStanzas(t *testing.T) {
	setup, err := caddy.DirectiveAction("dns", "forward")
	kit.Must(t, err)
	var all []string
	for _, text := range stanzas.Texts(t) {
		refusal := ""
		if err := setup(caddy.NewTestController("dns", text)); err != nil {
			refusal = err.Error()
		}
		all = append(all, refusal)
	}
	if path := os.Getenv(variable); path != "" {
		kit.Write(t, path, strings.Join(all, stanzas.Separator))
	}
}
