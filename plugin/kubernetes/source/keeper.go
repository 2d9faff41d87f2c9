package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/wholefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/snapshot"
)

// Snapshot is the file with the records of a source, for a start while the source has none.
type Snapshot struct {
	// Path is the file. The empty path is no snapshot.
	Path string
	// Interval is the time between two writes, if records have changed.
	Interval time.Duration
	// MaxAge is the age beyond which a file is refused.
	MaxAge time.Duration
}

// Identified is a Source that identifies the cluster that it reads.
type Identified interface {
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

// keeper writes the snapshot of one source, and restores it.
type keeper struct {
	Snapshot
	source  Source
	options string // see snapshot.Header
	index   *index.Index
	now     func() time.Time
	ended   <-chan struct{} // closed when the source stops
	failing bool            // the last write failed; used by the writer only

	mu       sync.Mutex
	tried    bool      // restore was called
	restored time.Time // time of the restored records, zero if none are in use
	cluster  string    // UID of the cluster; "" if unknown
	written  struct {
		at     time.Time // when the last write began
		writes uint64    // of the index by then
	}
}

// checkEvery is the interval in which restored records are compared with the state of the source.
const checkEvery = 100 * time.Millisecond

// retryEvery is the interval between two attempts to write the first snapshot, and to read the UID of the cluster.
const retryEvery = 2 * time.Second

// status marks the resources of which restored records are in use.
func (k *keeper) status(all []Status) []Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.restored.IsZero() {
		return all
	}
	all = slices.Clone(all)
	for i := range all {
		all[i].Restored = !all[i].Synced
	}
	return all
}

// run writes snapshots until ctx ends: the first one soon after the records have been read.
func (k *keeper) run(ctx context.Context) {
	snapshotInUse.WithLabelValues(k.Path) // exported as 0
	k.report(wholefile.Check(k.Path))
	next := time.NewTimer(0)
	defer next.Stop()
	identified, wrote := false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		identified = identified || k.identify(ctx)
		wrote = identified && k.write() || wrote
		wait := min(retryEvery, k.Interval)
		if wrote {
			wait = k.Interval
		}
		next.Reset(wait)
	}
}

// identify reads the UID of the cluster, and reports whether it is known.
func (k *keeper) identify(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, retryEvery)
	defer cancel()
	uid, err := k.source.(Identified).ClusterUID(ctx)
	if err != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cluster = uid
	return true
}

// write writes the records, if all of them have been read and some may have changed since the last time. A snapshot that is
// unchanged is written again at a quarter of its maximum age. It reports whether the file is there.
func (k *keeper) write() (written bool) {
	now, writes := k.now(), k.index.Writes()
	k.mu.Lock()
	cluster, last := k.cluster, k.written
	k.mu.Unlock()
	current, complete := k.currentAt(now)
	if !complete {
		return false
	}
	if !last.at.IsZero() && writes == last.writes && now.Sub(last.at) < k.MaxAge/4 {
		return true
	}
	h := snapshot.Header{Cluster: cluster, Server: k.source.(Identified).Server(), Options: k.options, Time: current}
	err := wholefile.Replace(k.Path, func(w io.Writer) error { return snapshot.Write(w, h, k.index.Contents()) })
	k.report(err)
	if err != nil {
		snapshotWrites.WithLabelValues(k.Path, "error").Inc()
		return false
	}
	snapshotWrites.WithLabelValues(k.Path, "success").Inc()
	snapshotTime.WithLabelValues(k.Path).Set(float64(current.UnixMilli()) / 1e3)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.written.at, k.written.writes = now, writes
	return true
}

// report logs when writes begin to fail, and when they succeed again.
func (k *keeper) report(err error) {
	switch {
	case err != nil && !k.failing:
		log.Errorf("snapshot %s cannot be written: %v; a start without the API server will use an older one, or none", k.Path, err)
	case err == nil && k.failing:
		log.Infof("snapshot %s can be written again", k.Path)
	}
	k.failing = err != nil
}

// currentAt returns the time at which the records were known to be current, and whether all resources have been read.
func (k *keeper) currentAt(now time.Time) (current time.Time, complete bool) {
	if len(k.unread()) > 0 {
		return now, false
	}
	current = now
	for _, s := range k.source.Status() {
		if s.Uncertain && !s.Heard.IsZero() && s.Heard.Before(current) {
			current = s.Heard
		}
	}
	return current, true
}

// restore puts the records of the file into the index, once, unless the source has been read by then. It reports whether records
// of a snapshot are in use.
func (k *keeper) restore() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tried {
		return !k.restored.IsZero()
	}
	k.tried = true
	begin := k.now()
	h, c, err := k.read()
	if errors.Is(err, fs.ErrNotExist) {
		log.Infof("no snapshot %s", k.Path)
		return false
	}
	if err == nil {
		err = k.accept(h)
	}
	if err != nil {
		log.Errorf("snapshot %s refused: %v", k.Path, err)
		return false
	}
	if len(k.unread()) == 0 {
		return false
	}
	k.index.Restore(c)
	k.restored = h.Time
	snapshotInUse.WithLabelValues(k.Path).Set(1)
	snapshotTime.WithLabelValues(k.Path).Set(float64(h.Time.UnixMilli()) / 1e3)
	log.Warningf("the API server has not been read (%v): answering from snapshot %s, %s old, with TTLs of at most %d s; it was loaded in %s",
		k.unread(), k.Path, k.now().Sub(h.Time).Round(time.Second), StaleTTL, k.now().Sub(begin).Round(time.Millisecond))
	go k.replace(h.Cluster)
	return true
}

// StaleTTL is the maximum TTL of answers from a snapshot, in seconds.
const StaleTTL = 5

func (k *keeper) read() (snapshot.Header, index.Contents, error) {
	f, err := os.Open(k.Path)
	if err != nil {
		return snapshot.Header{}, index.Contents{}, err
	}
	defer f.Close() //nolint:errcheck // it was read only
	info, err := f.Stat()
	if err != nil {
		return snapshot.Header{}, index.Contents{}, err
	}
	return snapshot.Read(f, info.Size())
}

// accept returns the reason why a valid snapshot cannot be used, nil if it can.
func (k *keeper) accept(h snapshot.Header) error {
	age := k.now().Sub(h.Time)
	switch {
	case age > k.MaxAge:
		return fmt.Errorf("it is %s old: want at most %s", age.Round(time.Second), k.MaxAge)
	case age < -clockSkew:
		return fmt.Errorf("it is from %s, in the future", h.Time.UTC().Format(time.RFC3339))
	case h.Server != k.source.(Identified).Server():
		return errors.New("it is of another API server")
	case h.Options != k.options:
		return errors.New("it was written with other options, which select or store other records")
	case k.cluster != "" && h.Cluster != k.cluster:
		return errOtherCluster
	}
	return nil
}

var errOtherCluster = errors.New("it is of another cluster: the UID of its namespace kube-system differs")

// clockSkew is the time by which the clock may have gone back since the file was written.
const clockSkew = time.Minute

// unread returns the resources that have not been read and may be.
func (k *keeper) unread() (names []string) {
	for _, s := range k.source.Status() {
		if !s.Synced && !s.Denied {
			names = append(names, s.Resource)
		}
	}
	return names
}

// replace waits until the source has been read, which ends the use of the snapshot, or until the snapshot proves to be of another
// cluster.
func (k *keeper) replace(cluster string) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.ended:
			k.endUse()
			return
		case <-tick.C:
		}
		k.mu.Lock()
		other := k.cluster != "" && k.cluster != cluster
		k.mu.Unlock()
		switch {
		case other:
			k.endUse()
			log.Errorf("snapshot %s refused: %v; answering SERVFAIL until the API server has been read", k.Path, errOtherCluster)
			return
		case len(k.unread()) == 0:
			k.endUse()
			log.Infof("the API server has been read: its records replace snapshot %s", k.Path)
			return
		}
	}
}

func (k *keeper) endUse() {
	k.mu.Lock()
	k.restored = time.Time{}
	k.mu.Unlock()
	snapshotInUse.WithLabelValues(k.Path).Set(0)
	k.index.Outdate()
}
