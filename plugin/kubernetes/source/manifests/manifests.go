// Package manifests brings a directory of Kubernetes manifests into an index, as if they were in a
// cluster. In go files of YAML and JSON, watched as long as the source runs; out come the records of
// their Services, ServiceImports, EndpointSlices, Namespaces, Nodes and Pods, in the index, and the ID of the
// cluster.
//
// It stands in for an API server: it imports no client-go, and no dns package, and it knows nothing
// of how names are answered.
package manifests

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// logger is the part of the CoreDNS logger that is used here; tests put their own in its place.
type logger interface {
	Infof(format string, v ...any)
	Warningf(format string, v ...any)
	Errorf(format string, v ...any)
}

// timing holds the intervals of a Source, so that tests can shorten them.
type timing struct {
	// settle is how long the directory must be at rest after a change, and settleMost how long
	// changes that go on and on are waited for.
	settle, settleMost time.Duration
	// reread is how often everything is read whether or not it seems to have changed: on network
	// file systems no change may be heard of.
	reread time.Duration
	// poll is how often changes are looked for while the directory cannot be watched.
	poll time.Duration
	// empty is how long a file must stay empty until that is believed: a writer truncates first.
	empty time.Duration
	// grain is the age from which on the time of a file's last change tells it from the next one.
	grain time.Duration
}

var defaultTiming = timing{
	settle:     100 * time.Millisecond,
	settleMost: 500 * time.Millisecond,
	reread:     30 * time.Second,
	poll:       2 * time.Second,
	empty:      time.Second,
	grain:      2 * time.Second,
}

// bounds limit what is read, so that a wrong directory is an error and not the end of the memory.
type bounds struct {
	files     int   // manifests and directories
	fileBytes int64 // in one file
	allBytes  int64 // in all files
}

var defaultBounds = bounds{files: 100_000, fileBytes: 16 << 20, allBytes: 1 << 30}

// Source keeps an index in step with a directory of manifests. New makes it.
type Source struct {
	dir    string // as it was given, for messages
	root   string // the same, absolute
	opts   source.Options
	parser parser
	log    logger
	now    func() time.Time
	wait   timing
	bounds bounds

	// What follows belongs to New and then to Run.

	ix    *index.Index
	files map[string]*file // by path below the directory
	// troubles are the lines logged about directories, by path: one line for each, until it is mended.
	troubles map[string]string
	served   served

	mu     sync.Mutex
	inStep bool      // the index has what was read; guarded by mu
	heard  time.Time // guarded by mu
	frozen bool      // guarded by mu
}

var _ source.Source = (*Source)(nil)

// New reads the directory once and returns a Source that begins with what was read. Its error is one
// line with the file and line of what is wrong.
func New(dir string, opts source.Options, skipped *source.Skipped) (*Source, error) {
	s, err := newSource(dir, opts, skipped)
	if err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	return s, nil
}

// newSource returns a Source that has read nothing yet.
func newSource(dir string, opts source.Options, skipped *source.Skipped) (*Source, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("manifests directory %s: %w", dir, err)
	}
	if skipped == nil {
		skipped = new(source.Skipped)
	}
	return &Source{
		dir:      filepath.Clean(dir),
		root:     root,
		opts:     opts,
		parser:   parser{opts: opts, strip: source.Stripper{Options: opts, Skipped: skipped}},
		log:      clog.NewWithPlugin("kubernetes"),
		now:      time.Now,
		wait:     defaultTiming,
		bounds:   defaultBounds,
		files:    map[string]*file{},
		troubles: map[string]string{},
	}, nil
}

// begin is the look at the directory that decides whether the server starts.
func (s *Source) begin() error {
	t, err := s.readTree(nil, true)
	if err != nil {
		return s.directoryError(err)
	}
	for _, dir := range sorted(t.unreadable) {
		return fmt.Errorf("%s: %s", s.show(dir), t.unreadable[dir])
	}
	s.drop(t)
	s.choose()
	var broken []string
	for _, f := range s.inOrder() {
		if p := f.trouble(); p != "" {
			broken = append(broken, p)
		}
	}
	switch len(broken) {
	case 0:
	case 1:
		return errors.New(broken[0])
	default:
		return fmt.Errorf("%s (the first of %d broken files)", broken[0], len(broken))
	}
	s.settleFiles()
	s.hear()
	return nil
}

// Status tells when the directory was last looked at with success. All resources are in step once Run has begun.
func (s *Source) Status() []source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []source.Status
	for _, r := range s.opts.Resources() {
		all = append(all, source.Status{Resource: r, Synced: s.inStep, Heard: s.heard, Frozen: s.frozen})
	}
	return all
}

// hear notes a look at the directory that succeeded.
func (s *Source) hear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard, s.frozen = s.now(), false
}

// freeze notes that neither the watch nor a look tells of changes.
func (s *Source) freeze(is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = is
}
