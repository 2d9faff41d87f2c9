package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

var hashSeed = maphash.MakeSeed()

// file is one manifest: what it holds, and what is served of it.
type file struct {
	path string // below the directory
	show string // as messages have it

	info   fs.FileInfo // when it was last read, nil where that must be done again
	readAt time.Time
	sum    uint64 // of the content that was last parsed
	parsed bool

	fresh      *contents // what it holds, nil while it is broken
	problem    string    // why it is broken
	conflict   string    // why fresh cannot be served beside other files
	emptySince time.Time // when it lost its whole content, zero once that is believed
	chosen     *contents // what of the two is to be served
	good       *contents // what is served of it, nil before the first
	logged     string    // the trouble that the log has
}

// trouble returns what is wrong with the file, or "".
func (f *file) trouble() string {
	if f.problem != "" {
		return f.problem
	}
	return f.conflict
}

// held tells whether the file may be about to be written.
func (f *file) held() bool { return !f.emptySince.IsZero() }

// wants returns what of the file should be served, other files permitting.
func (f *file) wants() *contents {
	if f.problem != "" || f.held() {
		return f.good
	}
	return f.fresh
}

// fail notes that the file cannot be read.
func (f *file) fail(problem string) {
	f.info, f.parsed, f.fresh, f.emptySince = nil, false, nil, time.Time{}
	f.problem = f.show + ": " + problem
}

// read brings a file up to date. Without all, a file that looks as it did is taken to be the same.
func (s *Source) read(f *file, e entry, all bool) {
	if e.info == nil {
		f.fail(e.problem)
		return
	}
	if !all && !f.held() && f.info != nil && sameInfo(f.info, e.info) && f.readAt.Sub(e.info.ModTime()) > s.wait.grain {
		return
	}
	readAt := s.now()
	content, err := s.content(f, e.info.Size())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return // gone since it was listed, which the next list shows
	case err != nil:
		f.fail(reason(err))
		return
	}
	f.info, f.readAt = e.info, readAt
	if len(bytes.TrimSpace(content)) == 0 && s.hold(f) {
		return
	}
	f.emptySince = time.Time{}
	if sum := maphash.Bytes(hashSeed, content); !f.parsed || sum != f.sum {
		f.parse(s.parser, content)
		f.sum, f.parsed = sum, true
	}
}

// hold tells whether an empty file is to be waited for.
func (s *Source) hold(f *file) bool {
	if f.good == nil || len(f.good.objects) == 0 {
		return false
	}
	if !f.held() {
		f.emptySince = s.now()
	}
	return s.now().Sub(f.emptySince) < s.wait.empty
}

func (s *Source) content(f *file, size int64) ([]byte, error) {
	tooLarge := fmt.Errorf("larger than %d MiB; split it", s.bounds.fileBytes>>20)
	if size > s.bounds.fileBytes {
		return nil, tooLarge
	}
	r, err := os.Open(filepath.Join(s.root, f.path))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, s.bounds.fileBytes+1))
	if err == nil && int64(len(content)) > s.bounds.fileBytes {
		return nil, tooLarge
	}
	return content, err
}

func (f *file) parse(p parser, content []byte) {
	f.problem = ""
	var bad *problem
	if f.fresh, bad = p.parse(f.path, content); bad != nil {
		f.problem = fmt.Sprintf("%s:%s", f.show, bad)
	}
}
