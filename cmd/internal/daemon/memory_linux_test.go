package daemon

import (
	"os"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/nearside-dns/nearside/internal/memory"
)

// TestReleaseProgram runs in a program without other memory of files, apart from libraries.
func TestReleaseProgram(t *testing.T) {
	before := fileMemory(t)
	if err := memory.ReleaseProgram(); err != nil {
		t.Fatal(err)
	}
	if after := fileMemory(t); after > before/2 {
		t.Errorf("resident memory of files is %d KiB after a release, %d before: want at most half", after>>10, before>>10)
	}
}

// fileMemory returns the resident memory of files, in bytes.
func fileMemory(t *testing.T) uint64 {
	t.Helper()
	p, err := procfs.NewProc(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.NewStatus()
	if err != nil {
		t.Fatal(err)
	}
	return status.RssFile
}
