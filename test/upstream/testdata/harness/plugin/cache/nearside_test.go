package cache

import (
	"os"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/nearside"
)

// TestMain waits for the checks of stanzas.
func TestMain(m *testing.M) {
	code := m.Run()
	nearside.Wait()
	os.Exit(code)
}
