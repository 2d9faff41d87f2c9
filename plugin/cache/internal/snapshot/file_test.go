package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

func noPause() error { return nil }

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "[a]*.snapshot")
	n, err := Write(path, testHeader, math.MaxInt64, slices.Values(testRecords), noPause)
	if err != nil || n != len(testRecords) {
		t.Fatalf("%d records written, %v", n, err)
	}
	info, err := os.Stat(path)
	kit.Must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	b, err := Read(path, info.Size())
	kit.Must(t, err)
	if s, err := Parse(b); err != nil || len(slices.Collect(s.Records())) != len(testRecords) {
		t.Errorf("it is refused: %v", err)
	}
	if _, err := Read(path, info.Size()-1); err == nil || !strings.Contains(err.Error(), "more than the limit of") {
		t.Errorf("larger than the limit: error %v", err)
	}
}

func TestReadRefused(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe")
	kit.Must(t, syscall.Mkfifo(pipe, 0o600))
	for name, tt := range map[string]struct{ path, want string }{
		"a folder":     {folder, "is not a regular file"},
		"a named pipe": {pipe, "is not a regular file"},
		"a device":     {"/dev/zero", "is not a regular file"},
		"no file":      {filepath.Join(folder, "none"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(tt.path, 1<<20); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
}

// TestWriteLimit has limits at which none, one, two and all records fit.
func TestWriteLimit(t *testing.T) {
	records := []Record{{Reply: make([]byte, 10)}, {Reply: make([]byte, 20)}, {Reply: make([]byte, 30)}}
	size := int64(headerLen + sumLen)
	limits := []int64{size}
	for i := range records {
		size += int64(records[i].Len())
		limits = append(limits, size)
	}
	path := filepath.Join(t.TempDir(), "file")
	for want, limit := range limits {
		for _, l := range []int64{limit, limit + 1} {
			n, err := Write(path, testHeader, l, slices.Values(records), noPause)
			if err != nil || n != want {
				t.Errorf("%d bytes: %d records, %v; want %d", l, n, err, want)
			}
			if info, err := os.Stat(path); err != nil || info.Size() != limit {
				t.Errorf("%d bytes: a file of %v, %v; want %d", l, info, err, limit)
			}
		}
	}
}

var errTest = errors.New("test")

// TestWriteFails checks that a failed write leaves the present file, and nothing else.
func TestWriteFails(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "file")
	if _, err := Write(path, testHeader, math.MaxInt64, slices.Values(testRecords), noPause); err != nil {
		t.Fatal(err)
	}
	before := kit.Read(t, path)
	if _, err := Write(path, testHeader, math.MaxInt64, slices.Values(testRecords[:1]), func() error { return errTest }); !errors.Is(err, errTest) {
		t.Errorf("error %v", err)
	}
	if kit.Read(t, path) != before {
		t.Error("the present file has changed")
	}
	kit.Must(t, os.Mkdir(filepath.Join(folder, "folder"), 0o700))
	if _, err := Write(filepath.Join(folder, "folder"), testHeader, math.MaxInt64, slices.Values(testRecords), noPause); err == nil {
		t.Error("a folder is replaced")
	}
	if _, err := Write(filepath.Join(folder, "none", "file"), testHeader, math.MaxInt64, slices.Values(testRecords), noPause); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a folder: error %v", err)
	}
	wantFiles(t, folder, "file", "folder")
}

func wantFiles(t *testing.T, folder string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	kit.Must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

// TestTwoWriters has two processes that write one file while a third one reads it: it always reads a complete one, of one of them.
func TestTwoWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	records := make([]Record, 200)
	for i := range records {
		records[i].Reply = make([]byte, 5000) // several writes
	}
	var writers sync.WaitGroup
	for i := range 2 {
		h := Header{Config: [32]byte{byte(i)}}
		writers.Go(func() {
			for range 20 {
				if _, err := Write(path, h, math.MaxInt64, slices.Values(records[:100*(i+1)]), noPause); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	seen := map[string]bool{}
	for end := false; !end; {
		select {
		case <-done:
			end = true
		default:
		}
		b, err := Read(path, math.MaxInt32)
		if errors.Is(err, fs.ErrNotExist) && !end {
			continue
		}
		kit.Must(t, err)
		s, err := Parse(b)
		kit.Must(t, err)
		if n := len(slices.Collect(s.Records())); n != 100*(int(s.Config[0])+1) {
			t.Fatalf("%d records of writer %d", n, s.Config[0])
		}
		seen[fmt.Sprint(s.Config[0])] = true
	}
	if len(seen) == 0 {
		t.Error("nothing was read")
	}
}
