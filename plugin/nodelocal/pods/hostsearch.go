package pods

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/autopath/path"
)

// logger is the part of the log that is used here; tests put their own in its place.
type logger interface {
	Infof(format string, v ...any)
	Warningf(format string, v ...any)
}

// lookEvery is how often the file is read, if anybody asks for the list.
const lookEvery = time.Second

// hostSearch is the search list of a resolv.conf. It is safe for concurrent use.
//
// Pods keep the list with which they were started. After the file has changed, the new one is taken for those as
// well: what the old one was before this process started is not known.
type hostSearch struct {
	file string
	now  func() time.Time
	log  logger

	list atomic.Pointer[[]string]
	next atomic.Int64 // when the file is to be read again, in nanoseconds since 1970

	mu      sync.Mutex // held while the file is read
	problem string     // with the file, as it was logged
}

// newHostSearch reads the file, which has to be there.
func newHostSearch(file string) (*hostSearch, error) {
	search, err := path.HostSearch(file)
	if err != nil {
		return nil, err
	}
	h := &hostSearch{file: file, now: time.Now, log: clog.NewWithPlugin("autopath")}
	h.list.Store(&search)
	h.waits()
	return h, nil
}

// waits notes that the file has been read.
func (h *hostSearch) waits() { h.next.Store(h.now().Add(lookEvery).UnixNano()) }

// get returns the list: the same slice as long as it is the same list.
func (h *hostSearch) get() []string {
	if h.isDue() && h.mu.TryLock() { // whoever comes meanwhile gets the list as it is
		if h.isDue() {
			h.look()
		}
		h.mu.Unlock()
	}
	return *h.list.Load()
}

// isDue reports whether the file is to be read again. A clock that was set back does not put it off for long.
func (h *hostSearch) isDue() bool {
	wait := h.next.Load() - h.now().UnixNano()
	return wait <= 0 || wait > int64(lookEvery)
}

// look reads the file. While that does not work, the list stays as it is.
func (h *hostSearch) look() {
	defer h.waits()
	search, err := path.HostSearch(h.file)
	switch {
	case err != nil && h.problem != err.Error():
		h.problem = err.Error()
		h.log.Warningf("%v; the search list of the node is taken to be as it was: %q", err, *h.list.Load())
	case err == nil && h.problem != "":
		h.problem = ""
		h.log.Infof("%s can be read again", h.file)
	}
	if err == nil && !slices.Equal(search, *h.list.Load()) {
		h.list.Store(&search)
	}
}
