//go:build coredns

package differential

import (
	"os"
	"strings"
	"testing"

	_ "github.com/coredns/coredns/plugin/cache"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// TestTranscripts writes the transcripts of CoreDNS's cache to a file for TestDifferential.
func TestTranscripts(t *testing.T) {
	var all strings.Builder
	for _, story := range property.List(t, 0, stories) {
		all.WriteString(transcript(t, story, ""))
		all.WriteByte(0)
	}
	kit.Write(t, os.Getenv("NEARSIDE_TRANSCRIPTS"), all.String())
}
