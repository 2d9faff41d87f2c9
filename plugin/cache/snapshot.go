package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin/metrics/vars"

	"github.com/nearside-dns/nearside/plugin/cache/internal/snapshot"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/internal/wholefile"
)

// snapshotOptions are the arguments of the option snapshot.
type snapshotOptions struct {
	file     string // absolute, or relative to the working directory; "" for none
	interval time.Duration
	maxAge   time.Duration // of a file, and of an answer in it since its receipt
	at       corefile.Position
}

// Limits of snapshots.
const (
	maxSnapshot   = 16 << 20             // bytes of a file, or the budget if that is less
	maxRestore    = 2 * time.Second      // time at start
	maxExitWrite  = 2 * time.Second      // time at the exit of the process
	snapshotPause = 5 * time.Millisecond // before each 256 KiB
)

// snapshotFiles has the positions of the options snapshot in one configuration, by file.
type snapshotFiles map[string]corefile.Position

// snapshotFilesKey is the key of snapshotFiles in the storage of a caddy instance.
type snapshotFilesKey struct{}

// claim returns an error if another block has the same file.
func (o *snapshotOptions) claim(c *caddy.Controller) error {
	if o.file == "" {
		return nil
	}
	files, ok := c.Get(snapshotFilesKey{}).(snapshotFiles)
	if !ok {
		files = snapshotFiles{}
		c.Set(snapshotFilesKey{}, files)
	}
	if first, twice := files[o.file]; twice {
		return o.at.Errorf("snapshot: %s is the file of %s:%d, too: want one for each server block", o.file, first.File, first.Line)
	}
	files[o.file] = o.at
	return nil
}

// snapshots are the running snapshotters by file. During a reload, they include the snapshotter of the next
// configuration instead of the present one.
var snapshots = struct {
	mu  sync.Mutex
	all map[string]*snapshotter
}{all: map[string]*snapshotter{}}

// snapshotter writes the answers of a cache to a file, and restores them at start.
type snapshotter struct {
	cache   *Cache
	config  [32]byte      // digest of the server block; set before state.restored
	before  *snapshotter  // of the present configuration, during a reload; guarded by the mutex of snapshots
	ended   chan struct{} // closed at the end of the configuration
	writing sync.Mutex    // held for as long as the disk needs
	open    func(path string, limit int64) ([]byte, error)

	mu    sync.Mutex
	state snapshotState
}

// snapshotState is the state of a file.
type snapshotState struct {
	restored bool          // the start has restored the answers
	failing  bool          // the last attempt to write has failed
	due      time.Duration // time of the next attempt, by the store's clock
}

func newSnapshotter(c *Cache) *snapshotter {
	return &snapshotter{cache: c, ended: make(chan struct{}), open: snapshot.Read}
}

// start restores the answers of an earlier process, or at a reload those of the present configuration, and starts to write them. It
// does nothing without the option.
func (s *snapshotter) start(b *block.Block) {
	o := &s.cache.snapshot
	if o.file == "" {
		return
	}
	config, err := b.Digest()
	if err != nil {
		log.Warningf("Snapshot %s disabled: the configuration of the server block is unknown: %v", o.file, err)
		return
	}
	s.begin(config)
}

func (s *snapshotter) begin(config [32]byte) {
	s.config = config
	o := &s.cache.snapshot
	snapshots.mu.Lock()
	s.before, snapshots.all[o.file] = snapshots.all[o.file], s
	before := s.before
	snapshots.mu.Unlock()
	state := snapshotState{restored: true, due: s.cache.now() + o.interval}
	switch {
	case before == nil:
		s.restoreFile()
	case before.config == config:
		s.takeOver(before)
		fallthrough
	default:
		present := before.present()
		state.failing, state.due = present.failing, min(present.due, state.due)
	}
	s.mu.Lock()
	s.state = state
	s.mu.Unlock()
	go s.run()
}

// stop ends the writing.
func (s *snapshotter) stop(end reload.End) {
	snapshots.mu.Lock()
	defer snapshots.mu.Unlock()
	s.mu.Lock() // so that report does not restore dropped metrics
	defer s.mu.Unlock()
	close(s.ended)
	file := s.cache.snapshot.file
	latest := snapshots.all[file]
	switch {
	case end == reload.Refused && latest == s && s.before != nil:
		snapshots.all[file] = s.before
	case latest == s:
		delete(snapshots.all, file)
		dropSnapshotMetrics(file)
	case latest != nil && latest.before == s:
		latest.before = nil
	}
}

// run writes the file once in an interval.
func (s *snapshotter) run() {
	s.report(wholefile.Check(s.cache.snapshot.file))
	timer := time.NewTimer(s.present().due - s.cache.now())
	defer timer.Stop()
	for {
		select {
		case <-s.ended:
			return
		case <-timer.C:
			s.write(s.pause)
			timer.Reset(s.cache.snapshot.interval)
		}
	}
}

func (s *snapshotter) present() snapshotState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

var errEnded = errors.New("the configuration has ended")

// pause limits the share of a CPU and of the disk that the writing needs.
func (s *snapshotter) pause() error {
	if s.isEnded() {
		return errEnded
	}
	time.Sleep(snapshotPause)
	return nil
}

func (s *snapshotter) isEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// exit writes the file at the exit of the process. A disk that hangs delays the exit for a limited time.
func (s *snapshotter) exit() {
	written := make(chan struct{})
	go func() {
		defer close(written)
		s.write(func() error { return nil })
	}()
	select {
	case <-written:
	case <-time.After(maxExitWrite):
		log.Warningf("Snapshot %s not written at exit within %v: the previous one remains", s.cache.snapshot.file, maxExitWrite)
	}
}

// write writes the file, but not before start has restored its answers.
func (s *snapshotter) write(pause func() error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.present().restored {
		return
	}
	c := s.cache
	now, h, limit := c.now(), snapshot.Header{Config: s.config, Written: c.wall()}, s.limit()
	_, err := snapshot.Write(c.snapshot.file, h, limit, c.records(now, limit), pause)
	if errors.Is(err, errEnded) {
		return
	}
	s.mu.Lock()
	s.state.due = c.now() + c.snapshot.interval
	if err == nil && !s.isEnded() {
		snapshotWritten.WithLabelValues(c.snapshot.file).Set(float64(h.Written.UnixNano()) / 1e9)
	}
	s.mu.Unlock()
	s.report(err)
}

// limit returns the maximum length of the file in bytes.
func (s *snapshotter) limit() int64 { return min(maxSnapshot, s.cache.store.Budget()) }

// report logs the result of an attempt to write if it differs from the last one.
func (s *snapshotter) report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	file, failing := s.cache.snapshot.file, err != nil
	if s.isEnded() {
		return
	}
	switch {
	case failing && !s.state.failing:
		log.Warningf("Snapshot %s cannot be written: %v; a restart loses the answers since the last one", file, err)
	case !failing && s.state.failing:
		log.Infof("Snapshot %s can be written again", file)
	}
	s.state.failing = failing
	value := 0.0
	if failing {
		value = 1
	}
	snapshotFailed.WithLabelValues(file).Set(value)
}

// takeOver copies the answers of the present configuration, which has an equal server block.
func (s *snapshotter) takeOver(before *snapshotter) {
	c := s.cache
	now := c.now()
	var w recordWriter
	for e := range before.cache.restorable(now, s.limit()) {
		w.options = e.Options
		if r, ok := w.recordOf(e, now); ok {
			c.restore(&r, now, e.Restored)
		}
	}
}

// restoreFile restores the answers in the file. Without a valid one, the cache remains empty.
func (s *snapshotter) restoreFile() {
	file := s.cache.snapshot.file
	restored, age, err := s.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		log.Warningf("Snapshot %s refused: %v; the cache starts with %d answers", file, err, restored)
	default:
		log.Infof("Snapshot %s restored: %d answers, written %v ago", file, restored, age.Round(time.Second))
	}
	snapshotAnswers.WithLabelValues(file).Add(float64(restored))
}

// errSlow ends the restoring of a large file, or of one on a disk that hangs: the server does not answer meanwhile.
var errSlow = fmt.Errorf("restoring takes more than %v", maxRestore)

// content returns the content of the file.
func (s *snapshotter) content() ([]byte, error) {
	type content struct {
		bytes []byte
		err   error
	}
	read := make(chan content, 1)
	go func() {
		b, err := s.open(s.cache.snapshot.file, s.limit())
		read <- content{b, err}
	}()
	select {
	case c := <-read:
		return c.bytes, c.err
	case <-time.After(maxRestore):
		return nil, errSlow
	}
}

// read restores the answers in the file, and returns their number and the age of the file. A panic must not end the process: the
// next one would read the same file.
func (s *snapshotter) read() (restored int, age time.Duration, err error) {
	defer func() {
		if r := recover(); r != nil {
			vars.Panic.Inc()
			log.Errorf("Snapshot %s panicked: %v\n%s", s.cache.snapshot.file, r, debug.Stack())
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	c := s.cache
	now := c.now()
	b, err := s.content()
	if err != nil {
		return 0, 0, err
	}
	parsed, err := snapshot.Parse(b)
	if err != nil {
		return 0, 0, err
	}
	end := now + maxRestore
	now = c.now()
	if age = c.wall().Sub(parsed.Written); parsed.Config != s.config {
		return 0, age, errOtherConfig
	}
	switch {
	case age < 0:
		return 0, age, fmt.Errorf("written in the future, at %s: the clock of the node was set back", parsed.Written.UTC().Format(time.RFC3339))
	case age > c.snapshot.maxAge:
		return 0, age, fmt.Errorf("written %v ago, more than MAX_AGE %v", age.Round(time.Second), c.snapshot.maxAge)
	}
	for r := range parsed.Records() {
		if c.now() > end {
			return restored, age, errSlow
		}
		if r.Age > c.snapshot.maxAge-age {
			continue
		}
		r.Age += age
		if c.restore(&r, now, true) {
			restored++
		}
	}
	return restored, age, nil
}

var errOtherConfig = errors.New("written by another configuration of the server block")
