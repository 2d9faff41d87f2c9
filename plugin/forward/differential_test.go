package forward

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/test/forward/stanzas"
	"github.com/nearside-dns/nearside/test/kit"
)

// exceptions are the stanzas that only CoreDNS's forward accepts, with the reasons.
var exceptions = map[string]string{}

func init() {
	for reason, upstreams := range map[string][]string{
		"an invalid port":              {"127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:port"},
		"an invalid port of a host":    {"dns.example:0x35"},
		"an unknown protocol":          {"https3://127.0.0.1"},
		"a directory":                  {"FOLDER 192.0.2.1"},
		"a file with a server by name": {"FOLDER/names.conf"},
	} {
		for _, to := range upstreams {
			exceptions["forward . "+to+" {\nresolver RESOLVER\n}"] = reason
		}
	}
}

// accepts returns the error of a stanza at the start of a server, which includes lookups.
func accepts(text string) error {
	configs, err := parse(caddy.NewTestController("dns", text))
	if err != nil {
		return err
	}
	for _, c := range configs {
		if _, err := newTargets(c).first(context.Background()); err != nil {
			return err
		}
	}
	return nil
}

// TestDifferential_Stanzas compares the accepted stanzas with those of CoreDNS's plugin.
func TestDifferential_Stanzas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "refusals")
	cmd := kit.Go("test", "-count=1", "-vet=off", "../../test/forward/stock")
	cmd.Env = append(cmd.Env, "NEARSIDE_STANZAS="+path)
	kit.Output(t, cmd)
	text := kit.Read(t, path)
	stock := strings.Split(text, stanzas.Separator)
	names, texts := stanzas.Names(), stanzas.Texts(t)
	if len(stock) != len(texts) || len(names) != len(texts) {
		t.Fatalf("CoreDNS's forward parsed %d stanzas of %d", len(stock), len(texts))
	}
	accepted := 0
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			err := accepts(texts[i])
			if err == nil {
				accepted++
			}
			if err != nil && !strings.HasPrefix(err.Error(), "Testfile:") {
				t.Errorf("the error has no position: %v", err)
			}
			got, want := err == nil, stock[i] == ""
			if _, known := exceptions[name]; known {
				if got || !want {
					t.Errorf("accepted: %t, by CoreDNS: %t; want accepted by CoreDNS only", got, want)
				}
				return
			}
			if got != want {
				t.Errorf("error\n     got %v\nCoreDNS: %s", err, stock[i])
			}
		})
	}
	if len(texts) < 150 || accepted < 50 || len(texts)-accepted < 50 {
		t.Errorf("%d stanzas, %d of them accepted: too few to compare", len(texts), accepted)
	}
}
