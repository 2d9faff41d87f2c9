// Package manifests updates an index from a directory of Kubernetes manifests, as if they were in a
// cluster. Input is files of YAML and JSON, watched as long as the source runs; output is the records of
// their Services, ServiceImports, EndpointSlices, Namespaces, Nodes and Pods, in the index, and the ID of the
// cluster. The directory is accepted or refused as a whole: while a file has an error, the last valid state is served.
//
// The package replaces an API server: it imports neither client-go nor CoreDNS's server.
package manifests

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// logger is the part of the CoreDNS logger that is used here; tests replace it.
type logger interface {
	Infof(format string, v ...any)
	Warningf(format string, v ...any)
	Errorf(format string, v ...any)
}

// timing has the intervals of a Source, so that tests can shorten them.
type timing struct {
	settle    time.Duration // without changes, after which the directory is read
	maxSettle time.Duration // the maximum of this delay while changes continue
	reread    time.Duration // between readings of all files: network file systems may report no changes
	poll      time.Duration // between readings while the directory cannot be watched
	empty     time.Duration // for which a file that had objects must be empty before its new state is accepted
	grain     time.Duration // after a write; a later write is certain to change the file's modification time
}

var defaultTiming = timing{
	settle:    100 * time.Millisecond,
	maxSettle: 500 * time.Millisecond,
	reread:    30 * time.Second,
	poll:      2 * time.Second,
	empty:     time.Second,
	grain:     2 * time.Second,
}

// bounds limit the files of a directory: a wrong directory must be an error, and not use up the memory.
type bounds struct {
	files     int   // manifests and directories
	fileBytes int64 // of one file
	allBytes  int64 // of all files
}

var defaultBounds = bounds{files: 100_000, fileBytes: 16 << 20, allBytes: 1 << 30}

// Source updates an index from a directory of manifests. New creates it.
type Source struct {
	dir    string // as configured, for messages
	root   string // the same, absolute
	opts   source.Options
	parser parser
	log    logger
	now    func() time.Time
	wait   timing
	bounds bounds

	// The rest is used by New and then by Run alone.

	ix       *index.Index
	files    map[string]*file // by path below the directory
	rereadAt time.Time        // when all files are read again
	cluster  *cluster         // the last valid state
	failure  string           // that has been logged; "" while the directory is valid
	kinds    map[string]bool  // kinds about which a line has been logged

	mu     sync.Mutex
	inStep bool      // the index has been filled; guarded by mu
	heard  time.Time // guarded by mu
	frozen bool      // guarded by mu
	failed bool      // the last reading failed; guarded by mu
}

var _ source.Source = (*Source)(nil)

// New reads the directory once and returns a Source that begins with this state. Its error is one line with the file
// of the first error, the line on which the document begins, and the field.
func New(dir string, opts source.Options) (*Source, error) {
	s, err := newSource(dir, opts)
	if err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	return s, nil
}

// begin reads the directory for the first time.
func (s *Source) begin() error {
	_, _, err := s.update(nil)
	return err
}

// newSource returns a Source that has read nothing yet.
func newSource(dir string, opts source.Options) (*Source, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("manifests directory %s: %w", dir, err)
	}
	return &Source{
		dir:     filepath.Clean(dir),
		root:    root,
		opts:    opts,
		parser:  parser{opts: opts, strip: source.NewStripper(opts)},
		log:     clog.NewWithPlugin("kubernetes"),
		now:     time.Now,
		wait:    defaultTiming,
		bounds:  defaultBounds,
		files:   map[string]*file{},
		cluster: newCluster(),
		kinds:   map[string]bool{},
	}, nil
}

// Status implements source.Source. All resources are synced once Run has begun.
func (s *Source) Status() []source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []source.Status
	for _, r := range s.opts.Resources() {
		all = append(all, source.Status{Resource: r, Synced: s.inStep, Heard: s.heard, Frozen: s.frozen, Uncertain: s.failed})
	}
	return all
}

// setFailed records whether the last valid state is served, not that of the files.
func (s *Source) setFailed(failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = failed
}

// setStatus records a reading of the directory: heard is its time, zero after an error of the file system (an invalid file is
// none); frozen is true if changes cannot be found.
func (s *Source) setStatus(heard time.Time, frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen = frozen; !heard.IsZero() {
		s.heard = heard
	}
}
