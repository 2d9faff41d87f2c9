package daemon

import (
	"os"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/prometheus/procfs"

	"github.com/nearside-dns/nearside/internal/memory"
)

// TestReleaseProgram runs in a program without other memory of files, apart from libraries.
func TestReleaseProgram(t *testing.T) {
	before := fileMemory(t)
	kit.Must(t, memory.ReleaseProgram())
	if after := fileMemory(t); after > before/2 {
		t.Errorf("resident memory of files is %d KiB after a release, %d before: want at most half", after>>10, before>>10)
	}
}

// fileMemory returns the resident memory of files, in bytes.
func fileMemory(t *testing.T) uint64 {
	t.Helper()
	p, err := procfs.NewProc(os.Getpid())
	kit.Must(t, err)
	status, err := p.NewStatus()
	kit.Must(t, err)
	return status.RssFile
}
