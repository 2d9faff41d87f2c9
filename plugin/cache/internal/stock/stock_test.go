// Package stock has a program with CoreDNS's cache in it, which writes down what that does.
package stock

import (
	"os"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/cache"

	"github.com/nearside-dns/nearside/plugin/cache/internal/script"
	"github.com/nearside-dns/nearside/test/property"
)

// Variable names the file that the transcripts are written to.
const variable = "NEARSIDE_TRANSCRIPTS"

func TestTranscripts(t *testing.T) {
	var all strings.Builder
	for _, story := range property.List(t, 0, script.Stories) {
		all.WriteString(script.Transcript(t, story, "", func(plugin.Handler) {}))
		all.WriteByte(0)
	}
	if path := os.Getenv(variable); path != "" {
		if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
