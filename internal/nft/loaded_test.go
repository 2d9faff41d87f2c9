package nft

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestLoaded: a listing would load the module of a kernel without nf_tables.
func TestLoaded(t *testing.T) {
	const none = "no file"
	for _, c := range []struct {
		name, modules, symbols string
		want                   bool
	}{
		{"its module is loaded", "nf_tables 1 0 - Live 0x0\n", none, true},
		{"it is built in", "dummy 1 0 - Live 0x0\n", "0 T nft_do_chain\n", true},
		{"it is missing", "nf_tables_x 1 0 - Live 0x0\n", "0 T nft_do_chain_arp\n", false},
		{"its module was loaded", "dummy 1 0 - Live 0x0\n", "0 T nft_do_chain [nf_tables]\n", false},
		{"the symbols are not shown", "dummy 1 0 - Live 0x0\n", none, false},
		{"a kernel without modules", none, none, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := func(name, text string) string {
				path := filepath.Join(t.TempDir(), name)
				if text == none {
					return path
				}
				kit.Must(t, os.WriteFile(path, []byte(text), 0o644))
				return path
			}
			symbols := file("kallsyms", c.symbols)
			if got := loaded(file("modules", c.modules), func() bool { return hasFunction(symbols) }); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}
