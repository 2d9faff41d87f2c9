package clients

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// logger is the part of the log used here; tests replace it.
type logger interface {
	Infof(format string, v ...any)
	Warningf(format string, v ...any)
}

// readInterval is the minimum time between two reads of the file.
const readInterval = time.Second

// hostSearch is the search list of a resolv.conf, which is read again at most once per readInterval, on demand. It is
// safe for concurrent use.
//
// A running pod has the list that the file had when the pod started. After a change of the file, the new list is used
// for those pods as well: earlier contents are unknown to a process that started later.
type hostSearch struct {
	file string
	now  func() time.Time
	log  logger

	list atomic.Pointer[[]string]
	next atomic.Int64 // time of the next read, in nanoseconds since 1970

	mu      sync.Mutex // held during a read
	problem string     // last error logged
}

// newHostSearch reads the file, which must exist.
func newHostSearch(file string) (*hostSearch, error) {
	search, err := searchlist.ReadResolvConf(file)
	if err != nil {
		return nil, err
	}
	h := &hostSearch{file: file, now: time.Now, log: clog.NewWithPlugin("autopath")}
	h.list.Store(&search)
	h.schedule()
	return h, nil
}

// schedule sets the time of the next read.
func (h *hostSearch) schedule() { h.next.Store(h.now().Add(readInterval).UnixNano()) }

// get returns the list. An unchanged list is the same slice.
func (h *hostSearch) get() []string {
	if h.isDue() && h.mu.TryLock() { // queries do not wait for another query's read
		if h.isDue() {
			h.read()
		}
		h.mu.Unlock()
	}
	return *h.list.Load()
}

// isDue reports whether the file is to be read again, also after the clock was set back.
func (h *hostSearch) isDue() bool {
	wait := h.next.Load() - h.now().UnixNano()
	return wait <= 0 || wait > int64(readInterval)
}

// read reads the file. After an error the list stays.
func (h *hostSearch) read() {
	defer h.schedule()
	search, err := searchlist.ReadResolvConf(h.file)
	switch {
	case err != nil && h.problem != err.Error():
		h.problem = err.Error()
		h.log.Warningf("reading resolv.conf failed: %v; the node's search list remains %q", err, *h.list.Load())
	case err == nil && h.problem != "":
		h.problem = ""
		h.log.Infof("%s is readable again", h.file)
	}
	if err == nil && !slices.Equal(search, *h.list.Load()) {
		h.list.Store(&search)
	}
}
