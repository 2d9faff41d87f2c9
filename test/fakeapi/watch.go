package fakeapi

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// defaultWatchTimeout ends watches which ask for no timeout of their own.
	defaultWatchTimeout = 30 * time.Minute
	// finalBookmark is how long before its end a watch gets a last bookmark.
	finalBookmark = 2 * time.Second
	// watchBuffer is how many bytes of a stream are gathered for one write.
	watchBuffer = 64 * 1024
)

// watch answers a request for a watch. An error is one of the request itself;
// later ones are told in the stream.
func (s *Server) watch(w http.ResponseWriter, req *http.Request, t target, rep representation) error {
	opts, f, err := s.options(req, t)
	if err != nil {
		return err
	}
	rv, err := parseRV(opts.ResourceVersion)
	if err != nil {
		return err
	}
	if err := rep.fits(t.collection.res, false); err != nil {
		return err
	}

	stream := newStream(w, rep, t.collection.res)
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	open := &openWatch{resource: t.collection.res.name, cancel: cancel, control: http.NewResponseController(w), done: make(chan struct{})}
	s.watches.add(open)
	defer s.watches.remove(open)

	timeout := defaultWatchTimeout
	if opts.TimeoutSeconds != nil && *opts.TimeoutSeconds > 0 {
		timeout = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	wt := &watcher{
		server:     s,
		collection: t.collection,
		filter:     f,
		stream:     stream,
		deadline:   time.NewTimer(timeout),
	}
	defer wt.deadline.Stop()
	if opts.AllowWatchBookmarks {
		if interval := time.Duration(s.bookmarks.Load()); interval > 0 {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			wt.bookmark = ticker.C
		}
		if timeout > finalBookmark {
			last := time.NewTimer(timeout - finalBookmark)
			defer last.Stop()
			wt.lastBookmark = last.C
		}
	}

	// As in a real server, a client that has the headers sees every later change.
	initial, refusal := wt.begin(opts, rv)
	w.Header().Set("Content-Type", rep.encoding.watchName)
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(http.StatusOK)
	breakOff(open.control.Flush())
	if refusal != nil {
		breakOff(wt.refuse(refusal))
		return nil
	}
	breakOff(wt.run(ctx, opts, initial))
	return nil
}

// watcher follows a collection for one client.
type watcher struct {
	server       *Server
	collection   *collection
	filter       filter
	stream       *stream
	deadline     *time.Timer
	bookmark     <-chan time.Time // nil when the client wants none
	lastBookmark <-chan time.Time

	seq uint64 // number of the next event to look at
	rv  uint64 // everything up to this resource version has been looked at
}

// initialEvents is what a streamed list starts with.
type initialEvents struct {
	wanted   bool
	versions []*version
}

// begin notes where the watch starts. It gives the objects that are there, if
// the client wants them, or what is wrong with the resource version.
func (w *watcher) begin(opts *internalversion.ListOptions, rv uint64) (initialEvents, error) {
	st := w.server.state
	st.mu.Lock()
	defer st.mu.Unlock()
	current, oldest := st.rv, w.collection.oldest
	var initial initialEvents
	initial.wanted = opts.SendInitialEvents != nil && *opts.SendInitialEvents || rv == 0 && opts.SendInitialEvents == nil
	switch {
	case initial.wanted && rv > current:
		return initial, errTooLarge(rv, current)
	case initial.wanted:
		w.rv = current
		initial.versions = w.collection.current()
	case rv == 0:
		w.rv = current // only what is yet to come
	case rv < oldest:
		return initial, errTooOld(rv, oldest)
	default:
		w.rv = rv
	}
	w.seq = w.collection.seqAfter(w.rv)
	return initial, nil
}

// refuse tells what is wrong with a watch's resource version as an event in a
// stream that ends there, as a real server does.
func (w *watcher) refuse(refusal error) error {
	if err := w.stream.send(watch.Error, statusOf(refusal)); err != nil {
		return err
	}
	return w.stream.flush()
}

// run delivers events until the timeout, when it gives nil, or until ctx ends
// or the client is gone, when it gives an error.
func (w *watcher) run(ctx context.Context, opts *internalversion.ListOptions, initial initialEvents) error {
	if initial.wanted {
		if over, err := w.awaitThaw(ctx); over || err != nil {
			return err
		}
		for _, v := range initial.versions {
			if w.filter.matches(v) {
				if err := w.stream.sendVersion(watch.Added, v); err != nil {
					return err
				}
			}
		}
		if opts.SendInitialEvents != nil && opts.AllowWatchBookmarks {
			if err := w.stream.sendBookmark(w.rv, true); err != nil {
				return err
			}
		}
	}
	return w.follow(ctx)
}

// awaitThaw waits while the collection is frozen. It reports true when the
// timeout came first.
func (w *watcher) awaitThaw(ctx context.Context) (bool, error) {
	for {
		w.server.state.mu.Lock()
		frozen, changed := w.collection.frozen, w.collection.changed
		w.server.state.mu.Unlock()
		if !frozen {
			return false, nil
		}
		select {
		case <-changed:
		case <-w.deadline.C:
			return true, nil
		case <-ctx.Done():
			return false, fmt.Errorf("watch ended: %w", ctx.Err())
		}
	}
}

// follow delivers events and bookmarks as they come.
func (w *watcher) follow(ctx context.Context) error {
	for {
		events, changed, err := w.next()
		if err != nil {
			return err
		}
		for _, e := range events {
			if err := w.deliver(e); err != nil {
				return err
			}
		}
		if err := w.stream.flush(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-w.bookmark:
			err = w.mark()
		case <-w.lastBookmark:
			err = w.mark()
		case <-w.deadline.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("watch ended: %w", ctx.Err())
		}
		if err != nil {
			return err
		}
	}
}

// next gives the events which are still to be delivered and the channel which
// is closed at the next change. A frozen collection has none.
func (w *watcher) next() ([]*event, <-chan struct{}, error) {
	st, c := w.server.state, w.collection
	st.mu.Lock()
	defer st.mu.Unlock()
	if c.frozen {
		return nil, c.changed, nil
	}
	if w.seq < c.firstSeq {
		return nil, nil, fmt.Errorf("watch fell behind by more than the history of %d events", st.history)
	}
	events := c.events[w.seq-c.firstSeq : len(c.events) : len(c.events)]
	w.seq += uint64(len(events))
	w.rv = max(w.rv, st.rv)
	return events, c.changed, nil
}

// deliver sends what an event means for the objects the client asked for.
func (w *watcher) deliver(e *event) error {
	was := e.prev != nil && w.filter.matches(e.prev)
	is := e.cur != nil && w.filter.matches(e.cur)
	switch {
	case is && was:
		return w.stream.sendVersion(watch.Modified, e.cur)
	case is:
		return w.stream.sendVersion(watch.Added, e.cur)
	case was:
		last, err := e.last(w.server.state.codecs)
		if err != nil {
			return err
		}
		return w.stream.sendVersion(watch.Deleted, last)
	}
	return nil
}

// mark sends a bookmark, unless something is yet to be delivered: then the
// resource version of that is as good.
func (w *watcher) mark() error {
	st := w.server.state
	st.mu.Lock()
	due := !w.collection.frozen && w.seq == w.collection.firstSeq+uint64(len(w.collection.events))
	if due {
		w.rv = max(w.rv, st.rv)
	}
	st.mu.Unlock()
	if !due {
		return nil
	}
	return w.stream.sendBookmark(w.rv, false)
}

// stream writes watch events to a client.
type stream struct {
	rep     representation
	res     *resource
	out     *bufio.Writer
	control *http.ResponseController
	frames  streaming.Encoder
	objects runtime.Encoder
	object  bytes.Buffer // the object of the event at hand
}

func newStream(w http.ResponseWriter, rep representation, res *resource) *stream {
	out := bufio.NewWriterSize(w, watchBuffer)
	memory := &runtime.Allocator{} // used anew for every event
	return &stream{
		rep:     rep,
		res:     res,
		out:     out,
		control: http.NewResponseController(w),
		frames:  streaming.NewEncoder(rep.encoding.framer.NewFrameWriter(out), allocating(rep.encoding.stream, memory)),
		objects: allocating(rep.encoding.serializer, memory),
	}
}

// allocating makes an encoder take its memory from memory, if it can.
func allocating(e runtime.Encoder, memory runtime.MemoryAllocator) runtime.Encoder {
	if with, ok := e.(runtime.EncoderWithAllocator); ok {
		return runtime.NewEncoderWithAllocator(with, memory)
	}
	return e
}

// send writes one event; flush is what sends it off.
func (s *stream) send(typ watch.EventType, obj runtime.Object) error {
	s.object.Reset()
	if err := s.objects.Encode(obj, &s.object); err != nil {
		return fmt.Errorf("encode watch event: %w", err)
	}
	frame := &metav1.WatchEvent{Type: string(typ), Object: runtime.RawExtension{Raw: s.object.Bytes()}}
	if err := s.frames.Encode(frame); err != nil {
		return fmt.Errorf("write watch event: %w", err)
	}
	return nil
}

func (s *stream) sendVersion(typ watch.EventType, v *version) error {
	obj, err := s.rep.single(v)
	if err != nil {
		return err
	}
	return s.send(typ, obj)
}

func (s *stream) sendBookmark(rv uint64, initialEventsEnd bool) error {
	return s.send(watch.Bookmark, s.rep.bookmark(s.res, rv, initialEventsEnd))
}

func (s *stream) flush() error {
	if s.out.Buffered() == 0 {
		return nil
	}
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("write watch events: %w", err)
	}
	if err := s.control.Flush(); err != nil {
		return fmt.Errorf("flush watch events: %w", err)
	}
	return nil
}

// openWatch is a watch as the fault methods see it.
type openWatch struct {
	resource string
	cancel   context.CancelFunc
	control  *http.ResponseController
	done     chan struct{} // closed at its end
}

// watchSet holds the open watches.
type watchSet struct {
	mu   sync.Mutex
	open map[*openWatch]bool
}

func (w *watchSet) add(o *openWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = map[*openWatch]bool{}
	}
	w.open[o] = true
}

func (w *watchSet) remove(o *openWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, o)
	close(o.done)
}

func (w *watchSet) count(resource string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for o := range w.open {
		if resource == "" || resource == o.resource {
			n++
		}
	}
	return n
}

// drop ends the watches on a resource, or all when it is "", and waits for
// that.
func (w *watchSet) drop(resource string) {
	var dropped []*openWatch
	w.mu.Lock()
	for o := range w.open {
		if resource != "" && resource != o.resource {
			continue
		}
		o.cancel()
		// A write to a client which doesn't read must end too. Where the
		// deadline can't be set the connection is gone already.
		_ = o.control.SetWriteDeadline(time.Unix(1, 0))
		dropped = append(dropped, o)
	}
	w.mu.Unlock()
	for _, o := range dropped {
		<-o.done
	}
}
