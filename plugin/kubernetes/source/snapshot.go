package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/wholefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/snapshot"
)

// Snapshot is the file with the records of a source, for a start while the API server does not respond.
type Snapshot struct {
	// Path is the file. The empty path is no snapshot.
	Path string
	// Interval is the time between two writes, if records have changed.
	Interval time.Duration
	// MaxAge is the age beyond which a file is refused.
	MaxAge time.Duration
	// Options are the Identity of the source's options: a file that was written with others is refused.
	Options string
}

// Identified is a Source that identifies the cluster that it reads.
type Identified interface {
	Source
	// Server identifies the API server as far as that is known without a connection: its address, and the authority of its certificate.
	Server() string
	// ClusterUID returns the UID of the namespace kube-system.
	ClusterUID(ctx context.Context) (string, error)
}

var (
	snapshotWrites = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nearside", Subsystem: "kubernetes", Name: "snapshot_writes_total",
		Help: "Writes of a snapshot, by file and by result: success or error.",
	}, []string{"file", "result"})
	snapshotTime = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "nearside", Subsystem: "kubernetes", Name: "snapshot_timestamp_seconds",
		Help: "Unix time at which the records of the last written or restored snapshot were current.",
	}, []string{"file"})
	snapshotInUse = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "nearside", Subsystem: "kubernetes", Name: "snapshot_in_use",
		Help: "1 while answers are made from a snapshot, since the API server has not been read yet, 0 otherwise.",
	}, []string{"file"})
)

// snapshotter writes the snapshot of one source, and restores it.
type snapshotter struct {
	Snapshot
	source Identified
	index  *index.Index
	now    func() time.Time
	users  int             // open handles; guarded by running.mu
	ctx    context.Context // until the last handle is closed
	stop   context.CancelFunc
	done   chan struct{} // closed after the last write

	restoring sync.Mutex // held while the file is read
	tried     bool       // the file was read, or could not be; guarded by restoring

	mu      sync.Mutex
	inUse   bool   // restored records are used
	cluster string // UID of the cluster; "" if unknown

	// Only the goroutine that writes uses these.
	failing   bool      // the last write failed
	unknown   bool      // it was logged that the cluster cannot be identified
	written   time.Time // when the last write began
	writesHad uint64    // the number of writes of the index when the last write began
}

const (
	// checkEvery is the interval in which restored records are compared with the state of the source.
	checkEvery = 100 * time.Millisecond
	// retryEvery is the interval between two attempts to write the first snapshot, and to identify the cluster.
	retryEvery = 2 * time.Second
	// readTimeout bounds the time that the start waits for the file.
	readTimeout = 10 * time.Second
	// maxSnapshot bounds the size of a file that is read, in bytes: 20 times that of a file with 1,000,000 endpoints.
	maxSnapshot = 256 << 20
	// clockSkew is the time by which the clock may have gone back since the file was written.
	clockSkew = time.Minute
)

// isInUse reports whether restored records are used.
func (s *snapshotter) isInUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse
}

// run writes snapshots until ctx ends: the first one soon after the records have been read.
func (s *snapshotter) run(ctx context.Context) {
	snapshotInUse.WithLabelValues(s.Path) // exported as 0
	s.report(wholefile.Check(s.Path))
	next := time.NewTimer(0)
	defer next.Stop()
	wrote := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		wait := min(retryEvery, s.Interval)
		if s.identify(ctx) {
			wrote = s.write(ctx) || wrote
		}
		if wrote {
			wait = s.Interval
		}
		next.Reset(wait)
	}
}

// identify reads the UID of the cluster, once, and reports whether it is known.
func (s *snapshotter) identify(ctx context.Context) bool {
	s.mu.Lock()
	known := s.cluster != ""
	s.mu.Unlock()
	if known {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, retryEvery)
	defer cancel()
	uid, err := s.source.ClusterUID(ctx)
	if err != nil {
		if !s.unknown && len(s.unread()) == 0 {
			s.unknown = true
			log.Warningf("snapshot %s is not written: the cluster cannot be identified: %v", s.Path, err)
		}
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster = uid
	return true
}

// write writes the records, if all of them have been read and some may have changed since the last time. A snapshot that is
// unchanged is written again at a quarter of its maximum age. It reports whether the source's snapshot is in the file.
func (s *snapshotter) write(ctx context.Context) bool {
	now, writes := s.now(), s.index.Writes()
	if s.isInUse() || len(s.unread()) > 0 {
		return false // some of the records may be those of a file
	}
	if !s.written.IsZero() && writes == s.writesHad && now.Sub(s.written) < s.MaxAge/4 {
		return true
	}
	s.mu.Lock()
	h := snapshot.Header{Cluster: s.cluster, Server: s.source.Server(), Options: s.Options, Time: s.currentAt(now)}
	s.mu.Unlock()
	err := wholefile.Replace(s.Path, func(w io.Writer) error {
		return errors.Join(snapshot.Write(w, h, s.index.Contents()), ctx.Err()) // the next configuration may have written it since
	})
	if ctx.Err() != nil {
		return false
	}
	s.report(err)
	if err != nil {
		snapshotWrites.WithLabelValues(s.Path, "error").Inc()
		return false
	}
	snapshotWrites.WithLabelValues(s.Path, "success").Inc()
	snapshotTime.WithLabelValues(s.Path).Set(float64(h.Time.UnixMilli()) / 1e3)
	s.written, s.writesHad = now, writes
	return true
}

// report logs when writes begin to fail, and when they succeed again.
func (s *snapshotter) report(err error) {
	switch {
	case err != nil && !s.failing:
		log.Errorf("snapshot %s cannot be written: %v; a start without the API server will use an older one, or none", s.Path, err)
	case err == nil && s.failing:
		log.Infof("snapshot %s can be written again", s.Path)
	}
	s.failing = err != nil
}

// currentAt returns the time at which the records were known to be current.
func (s *snapshotter) currentAt(now time.Time) time.Time {
	current := now
	for _, st := range s.source.Status() {
		if (st.Uncertain || st.Frozen) && !st.Heard.IsZero() && st.Heard.Before(current) {
			current = st.Heard
		}
	}
	return current
}

// unread returns the resources that have not been read. The account may lack the permission for optional ones.
func (s *snapshotter) unread() (names []string) {
	for _, st := range s.source.Status() {
		if !st.Synced && !(st.Denied && IsOptional(st.Resource)) {
			names = append(names, st.Resource)
		}
	}
	return names
}

// restore puts the records of the file into the index, once, unless the source has been read by then. It reports whether records
// of a snapshot are in use.
func (s *snapshotter) restore(ctx context.Context) bool {
	s.restoring.Lock()
	defer s.restoring.Unlock()
	if s.tried {
		return s.isInUse()
	}
	s.tried = true
	begin := s.now()
	h, c, err := s.read()
	if err == nil {
		err = s.accept(h)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		log.Infof("there is no snapshot %s", s.Path)
		return false
	case err != nil:
		log.Errorf("snapshot %s refused: %v", s.Path, err)
		return false
	}
	unread := s.unread()
	if len(unread) == 0 || ctx.Err() != nil {
		return false
	}
	s.mu.Lock()
	s.inUse = true // before the first record is found
	s.mu.Unlock()
	s.index.Restore(c)
	snapshotInUse.WithLabelValues(s.Path).Inc()
	snapshotTime.WithLabelValues(s.Path).Set(float64(h.Time.UnixMilli()) / 1e3)
	log.Warningf("the API server has not been read (%v): answering from snapshot %s, %s old, loaded in %s",
		unread, s.Path, s.now().Sub(h.Time).Round(time.Second), s.now().Sub(begin).Round(time.Millisecond))
	go s.replace(ctx, h.Cluster)
	return true
}

// read reads the file. If the disk does not respond in time, the start continues without the file.
func (s *snapshotter) read() (h snapshot.Header, c index.Contents, err error) {
	done := make(chan struct{})
	var readHeader snapshot.Header
	var readContents index.Contents
	var readErr error
	go func() {
		defer close(done)
		readHeader, readContents, readErr = readFile(s.Path)
	}()
	select {
	case <-done:
		return readHeader, readContents, readErr
	case <-time.After(readTimeout):
		return h, c, fmt.Errorf("it cannot be read within %s", readTimeout)
	}
}

func readFile(path string) (h snapshot.Header, c index.Contents, err error) {
	f, size, err := wholefile.Open(path)
	if err != nil {
		return h, c, err
	}
	defer f.Close() //nolint:errcheck // it was read only
	if size > maxSnapshot {
		return h, c, fmt.Errorf("%d bytes: want at most %d", size, maxSnapshot)
	}
	return snapshot.Read(f, size)
}

// accept returns the reason why a valid snapshot cannot be used, nil if it can.
func (s *snapshotter) accept(h snapshot.Header) error {
	age := s.now().Sub(h.Time)
	s.mu.Lock()
	cluster := s.cluster
	s.mu.Unlock()
	switch {
	case age > s.MaxAge:
		return fmt.Errorf("it is %s old: want at most %s", age.Round(time.Second), s.MaxAge)
	case age < -clockSkew:
		return fmt.Errorf("it is from %s, in the future", h.Time.UTC().Format(time.RFC3339))
	case h.Server != s.source.Server():
		return errors.New("it is of another API server")
	case h.Options != s.Options:
		return errors.New("it was written with other options, which select or store other records")
	case cluster != "" && h.Cluster != cluster:
		return errOtherCluster
	}
	return nil
}

var errOtherCluster = errors.New("it is of another cluster: the UID of its namespace kube-system differs")

// replace waits until the source has been read, which ends the use of the snapshot, or until the snapshot proves to be of another
// cluster.
func (s *snapshotter) replace(ctx context.Context, cluster string) {
	defer snapshotInUse.WithLabelValues(s.Path).Dec()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		other := s.cluster != "" && s.cluster != cluster
		s.mu.Unlock()
		switch {
		case other:
			log.Errorf("snapshot %s refused: %v; answering SERVFAIL until the API server has been read", s.Path, errOtherCluster)
			s.endUse()
			return
		case len(s.unread()) == 0:
			log.Infof("the API server has been read: its records replace snapshot %s", s.Path)
			s.endUse()
			return
		}
	}
}

// endUse ends the use of the snapshot: it deletes the records that the source has not replaced, and outdates all answers.
func (s *snapshotter) endUse() {
	s.mu.Lock()
	s.inUse = false
	s.mu.Unlock()
	s.index.DropRestored()
	s.index.Outdate()
}

// marked returns the status of a source, in which resources with restored records are marked.
func (s *snapshotter) marked() []Status {
	inUse := s.isInUse() // before Status: the last resource may be read, and the use end, in between
	all := s.source.Status()
	if !inUse {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Restored = !all[i].Synced
	}
	return all
}
