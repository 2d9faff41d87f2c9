package apiserver

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// listTimeout is the time without another object after which a streamed list ends without its last bookmark.
const listTimeout = 10 * time.Second

// streamedList is a watch that begins with a list: an ADDED event for each object, and a bookmark that ends the list. It stops itself if that
// bookmark does not follow, as behind a proxy that drops bookmarks: client-go would wait for it as long as the watch lasts.
type streamedList struct {
	watch.Interface
	events  chan watch.Event
	stop    sync.Once
	stopped chan struct{}
}

// newStreamedList returns a watch with the events of w. It calls doesNotEnd before it stops itself.
func newStreamedList(w watch.Interface, timeout time.Duration, doesNotEnd func()) *streamedList {
	s := &streamedList{Interface: w, events: make(chan watch.Event), stopped: make(chan struct{})}
	go s.relay(timeout, doesNotEnd)
	return s
}

// ResultChan implements watch.Interface.
func (s *streamedList) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface.
func (s *streamedList) Stop() {
	s.Interface.Stop()
	s.stop.Do(func() { close(s.stopped) })
}

func (s *streamedList) relay(timeout time.Duration, doesNotEnd func()) {
	defer close(s.events)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	adds := true // until an event of another type: the events after the list are those of changes
	for {
		select {
		case <-timer.C:
			doesNotEnd()
			s.Interface.Stop()
			return
		case e, ok := <-s.Interface.ResultChan():
			if !ok {
				return
			}
			select {
			case s.events <- e:
			case <-s.stopped:
				return
			}
			switch { // now: the time in which the event waits for its reader is not silence
			case endsList(e):
				timer.Stop()
				adds = false
			case e.Type != watch.Added:
				adds = false
			case adds:
				timer.Reset(timeout)
			}
		}
	}
}

// endsList reports whether an event is the bookmark that ends a streamed list.
func endsList(e watch.Event) bool {
	if e.Type != watch.Bookmark {
		return false
	}
	o, err := meta.Accessor(e.Object)
	return err == nil && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}

// doesNotEnd records that a streamed list has no end. The reflector lists by pages then.
func (r *resource) doesNotEnd() {
	r.log.Warningf("%s: the streamed list of the API server %s does not end: no bookmark %s after the last object; listing by pages. A proxy before the server may drop bookmarks",
		r.name, r.host, r.listTimeout)
	r.health.mu.Lock()
	defer r.health.mu.Unlock()
	r.health.endless = true
}

// listsPages reports whether the next list must not be streamed.
func (h *health) listsPages() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.relist || h.endless
}
