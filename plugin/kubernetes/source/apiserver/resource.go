package apiserver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// resource is one resource that is listed and watched. It is the store of its reflector.
type resource struct {
	name           string
	host           string
	client         rest.Interface
	labels, fields string
	// accept and acceptList are the Accept headers for objects and for lists, if they differ from that of the client.
	accept, acceptList string
	listTimeout        time.Duration // see streamedList
	// definition is that of a custom resource, nil for one that every API server has; version is the one that is requested.
	definition  *definition
	version     atomic.Pointer[string]
	records     records
	health      *health
	garbage     *garbage
	turn        chan struct{} // of the source: has an element during the turn of a resource; see takeTurn
	hasTurn     atomic.Bool   // it is the turn of this resource
	consequence consequence
	log         clog.P
}

var (
	_ cache.TransformingStore      = (*resource)(nil)
	_ cache.ReflectorBookmarkStore = (*resource)(nil)
)

// reflector returns the reflector of the resource. It does not check the types of objects, which depend on the encoding: the records do.
func (r *resource) reflector(store cache.ReflectorStore) *cache.Reflector {
	pause := reflectorPause
	from := &cache.ListWatch{ListWithContextFunc: r.listObjects, WatchFuncWithContext: r.watchObjects}
	return cache.NewReflectorWithOptions(from, nil, store, cache.ReflectorOptions{Name: r.name, TypeDescription: r.name, Backoff: &pause})
}

func (r *resource) selected(o metav1.ListOptions) *metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = r.labels, r.fields
	return &o
}

// listObjects lists a page, or all where the server does not page, and strips it at once. It serves
// API servers without streamed lists, and lists after a frozen watch.
func (r *resource) listObjects(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if r.health.listsAnew() && o.Continue == "" {
		o.ResourceVersion, o.ResourceVersionMatch = "", "" // the newest, from the database
	}
	q := r.request(o, r.acceptList)
	if o.Continue == "" {
		if err := r.awaitPause(ctx, q.URL().Host); err != nil {
			return nil, err
		}
		r.takeTurn(ctx)
		r.garbage.begin(r)
	}
	page, err := q.Do(ctx).Get()
	if err != nil {
		return nil, r.requestFailed(err)
	}
	r.health.active()
	metadata, err := meta.ListAccessor(page)
	if err != nil {
		return nil, r.requestFailed(fmt.Errorf("list %s: %w", r.name, err))
	}
	records := &metainternalversion.List{}
	records.ResourceVersion, records.Continue = metadata.GetResourceVersion(), metadata.GetContinue()
	records.RemainingItemCount = metadata.GetRemainingItemCount()
	err = meta.EachListItem(page, func(o runtime.Object) error {
		record, err := r.records.strip(o)
		records.Items = append(records.Items, stripped{record})
		return err
	})
	if err != nil {
		return nil, r.requestFailed(fmt.Errorf("list %s: %w", r.name, err))
	}
	return records, nil
}

// requestFailed records the error of a list or of a request for a watch, and returns it.
func (r *resource) requestFailed(err error) error {
	r.endList()
	r.health.failed(err)
	r.health.requestFailed(err)
	return err
}

func (r *resource) request(o metav1.ListOptions, accept string) *rest.Request {
	q := r.client.Get()
	if o.Continue == "" {
		q.MaxRetries(0) // of client-go, after Retry-After: a new list or watch waits in awaitPause
	}
	if d := r.definition; d != nil {
		q.AbsPath("/apis", d.group, *r.version.Load())
	}
	q.Resource(r.name).VersionedParams(r.selected(o), metav1.ParameterCodec)
	if accept != "" {
		q.SetHeader("Accept", accept)
	}
	return q
}

// stripped carries a record through client-go's lists, which are of objects.
type stripped struct{ record any }

func (stripped) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (s stripped) DeepCopyObject() runtime.Object { return s }

// watchObjects opens a watch. After a frozen one it fails with the errors that make the reflector list: for a watch from a
// version, that the version has expired, and for a streamed list, which would be served from the cache behind the frozen
// watch, that the server does not support it; also after one that did not end.
func (r *resource) watchObjects(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	list := o.SendInitialEvents != nil && *o.SendInitialEvents
	switch {
	case list && r.health.listsPages():
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: r.name}, "", nil)
	case r.health.listsAnew():
		return nil, apierrors.NewResourceExpired("the watch was frozen")
	}
	o.Watch = true
	q := r.request(o, r.accept)
	// API servers since 1.37 compress a streamed list, and then each event by itself. That halves the bytes, and costs a quarter of our CPU time
	// for an event.
	q.SetHeader("Accept-Encoding", "identity")
	if err := r.awaitPause(ctx, q.URL().Host); err != nil {
		return nil, err
	}
	r.takeTurn(ctx)
	if list {
		r.garbage.begin(r)
	}
	w, err := q.Watch(ctx)
	if err == nil && reflect.TypeOf(w) == emptyWatch {
		err = errNoWatch
	}
	if err != nil {
		if err = r.requestFailed(err); r.health.mayWait() {
			err = r.overloaded(err)
		}
		return nil, err
	}
	if list {
		w = newStreamedList(w, r.listTimeout, r.doesNotEnd)
	} else {
		r.endTurn()
	}
	return r.health.opened(ending{w, r.endList}, list), nil
}

// emptyWatch is the type of the watch that client-go returns, without the error, if the connection ended before the response or nothing
// arrived in time. It counts as a failure: the API server has not answered, and changes may be missing.
var (
	emptyWatch = reflect.TypeOf(watch.NewEmptyWatch())
	errNoWatch = errors.New("the connection ended before the watch began, or nothing arrived in time")
)

// maxTurnWait limits the time for which a list or a watch waits for another resource.
const maxTurnWait = 10 * time.Second

// takeTurn is called before a list or a watch. After the first list of a resource, the resources of a source list, or request a watch, one
// after the other: when the API server returns, all clients do that, and it refuses requests beyond the length of its queues.
func (r *resource) takeTurn(ctx context.Context) {
	if !r.health.hasRead() || r.hasTurn.Load() { // it begins its list anew
		return
	}
	limit := time.NewTimer(maxTurnWait)
	defer limit.Stop()
	select {
	case r.turn <- struct{}{}:
		r.hasTurn.Store(true)
	case <-limit.C:
	case <-ctx.Done():
	}
}

// endTurn is called when a list has ended, or a watch has begun or failed.
func (r *resource) endTurn() {
	if r.hasTurn.Swap(false) {
		<-r.turn
	}
}

// endList is called when a list is complete or has failed.
func (r *resource) endList() {
	r.garbage.end(r)
	r.endTurn()
}

// overloaded returns an error by which the reflector requests the same watch again, after a pause with jitter, if the connection ended, a
// server or a load balancer reports that it cannot answer now, or a server denies the watch, as one does that has not read its roles yet. By
// another error the reflector would list all objects anew, also without pages, as soon as the server is back, and so would the other clients.
func (r *resource) overloaded(err error) error {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return err // the reflector requests a watch from another version
	}
	if errors.Is(err, errNoWatch) || isDenied(err) && r.definition == nil || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) {
		return apierrors.NewTooManyRequests(err.Error(), 0)
	}
	return err
}

// ending is a watch that calls a function at its end.
type ending struct {
	watch.Interface
	ended func()
}

// Stop is called by the reflector at the end of each watch.
func (e ending) Stop() {
	e.Interface.Stop()
	e.ended()
}

// Transformer strips the objects of a streamed list as they arrive.
func (r *resource) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		r.health.active()
		return r.records.strip(o)
	}
}

// Replace stores a list. Its items are records already.
func (r *resource) Replace(items []any, _ string) error {
	for i, item := range items {
		if s, ok := item.(stripped); ok {
			items[i] = s.record
		}
	}
	r.records.replace(items)
	r.health.synced()
	r.endList()
	r.garbage.listed(r, len(items))
	return nil
}

// Add stores the object of an event.
func (r *resource) Add(o any) error {
	defer r.health.heard()
	return r.records.put(o)
}

// Update stores the object of an event.
func (r *resource) Update(o any) error { return r.Add(o) }

// Delete removes the object of an event.
func (r *resource) Delete(o any) error {
	defer r.health.heard()
	return r.records.remove(o)
}

// Bookmark is called when the server reports that there is no change.
func (r *resource) Bookmark(string) error {
	r.health.heard()
	return nil
}

// Resync does nothing: the index is not a queue.
func (r *resource) Resync() error { return nil }
