// Package stock has a program with CoreDNS's forward in it, which writes down what that accepts.
package stock

import (
	"os"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	_ "github.com/coredns/coredns/core/dnsserver"
	_ "github.com/coredns/coredns/plugin/forward"

	"github.com/nearside-dns/nearside/test/forward/stanzas"
)

// variable names the file that the errors are written to, one for each stanza and empty for none.
const variable = "NEARSIDE_STANZAS"

func TestStanzas(t *testing.T) {
	setup, err := caddy.DirectiveAction("dns", "forward")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, text := range stanzas.Texts(t) {
		refusal := ""
		if err := setup(caddy.NewTestController("dns", text)); err != nil {
			refusal = err.Error()
		}
		all = append(all, refusal)
	}
	if path := os.Getenv(variable); path != "" {
		if err := os.WriteFile(path, []byte(strings.Join(all, stanzas.Separator)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
