package fakeapi

import (
	"bytes"
	"fmt"
	"sort"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstRV is the resource version of an empty new server.
	firstRV = 1000
	// defaultHistory is how many events of each resource are kept.
	defaultHistory = 10000
)

// state is the cluster: the current objects and the recent events of every
// resource, under one resource version counter.
type state struct {
	codecs *codecs

	mu          sync.Mutex
	rv          uint64
	history     int // events kept per resource
	collections map[string]*collection
}

// collection is the part of the state of one resource. All of it is guarded by
// state.mu, but versions and events never change and may be read without.
type collection struct {
	res     *resource
	objects map[key]*version
	sorted  []*version // objects by key, nil when not known

	events   []*event // oldest first
	firstSeq uint64   // number of events[0], counted from the beginning of time
	oldest   uint64   // watches from a resource version below this are refused

	served []string // versions of the API

	frozen bool // watches deliver nothing
	hung   bool // lists and gets don't answer

	forbidden bool // requests are answered with 403

	changed chan struct{} // closed and replaced at every change of the above
}

// event is one change of one object.
type event struct {
	rv   uint64
	prev *version // nil when the object is new
	cur  *version // nil when the object is gone

	goneOnce sync.Once
	gone     *version
	goneErr  error
}

// last gives the state before the event, under the event's resource version:
// what a DELETED event carries.
func (e *event) last(c *codecs) (*version, error) {
	e.goneOnce.Do(func() { e.gone, e.goneErr = e.prev.at(c, e.rv) })
	return e.gone, e.goneErr
}

func newState(c *codecs) *state {
	s := &state{codecs: c, rv: firstRV, history: defaultHistory, collections: map[string]*collection{}}
	for _, res := range servedResources() {
		c := &collection{
			res:     res,
			objects: map[key]*version{},
			oldest:  firstRV,
			changed: make(chan struct{}),
		}
		if res.custom == nil || !res.custom.absent {
			c.served = res.versions
		}
		s.collections[res.name] = c
	}
	return s
}

// wake tells those who wait for the collection to look again.
func (c *collection) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// put creates or updates each object in turn. With skipSame, objects which
// differ from the present ones only in what the server fills in are left alone.
func (s *state) put(objs []runtime.Object, skipSame bool) error {
	for _, o := range objs {
		name, err := resourceName(o)
		if err != nil {
			return err
		}
		obj, ok := o.DeepCopyObject().(object)
		if !ok {
			return fmt.Errorf("objects of type %T have no metadata", o)
		}
		c := s.collections[name]
		k := key{obj.GetNamespace(), obj.GetName()}
		prev := c.objects[k]
		if err := s.fill(obj, prev); err != nil {
			return err
		}
		if prev != nil && skipSame {
			same, err := newVersion(s.codecs, c.res, obj, prev.rv)
			if err != nil {
				return err
			}
			if bytes.Equal(same.raw, prev.raw) {
				continue
			}
		}
		cur, err := newVersion(s.codecs, c.res, obj, s.rv+1)
		if err != nil {
			return err
		}
		s.rv++
		c.objects[k] = cur
		s.record(c, &event{rv: s.rv, prev: prev, cur: cur})
	}
	return nil
}

// fill sets the UID and the creation time, where they are empty: those of the
// previous version, or else ones which depend on nothing but the order of
// changes, so that runs can be repeated.
func (s *state) fill(obj object, prev *version) error {
	created := obj.GetCreationTimestamp()
	if obj.GetUID() != "" && !created.IsZero() {
		return nil
	}
	uid := types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", s.rv+1))
	when := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	if prev != nil {
		meta, err := prev.partial()
		if err != nil {
			return err
		}
		uid, when = meta.UID, meta.CreationTimestamp
	}
	if obj.GetUID() == "" {
		obj.SetUID(uid)
	}
	if created.IsZero() {
		obj.SetCreationTimestamp(when)
	}
	return nil
}

// remove deletes the object with this key, if there is one.
func (s *state) remove(c *collection, k key) {
	prev := c.objects[k]
	if prev == nil {
		return
	}
	s.rv++
	delete(c.objects, k)
	s.record(c, &event{rv: s.rv, prev: prev})
}

// record appends an event to the history and wakes the watches.
func (s *state) record(c *collection, e *event) {
	c.sorted = nil
	c.events = append(c.events, e)
	s.trim(c)
	c.wake()
}

// trim forgets the events beyond the history's length.
func (s *state) trim(c *collection) {
	drop := len(c.events) - s.history
	if drop <= 0 {
		return
	}
	c.oldest = max(c.oldest, c.events[drop-1].rv)
	c.firstSeq += uint64(drop)
	// Watches read parts of this slice without the lock, so it is never
	// written to below its length; append moves it to a new array in time.
	c.events = c.events[drop:]
}

// replace makes objs the whole state.
func (s *state) replace(objs []runtime.Object) error {
	keep := map[string]map[key]bool{}
	for _, o := range objs {
		name, err := resourceName(o)
		if err != nil {
			return err
		}
		obj, ok := o.(object)
		if !ok {
			return fmt.Errorf("objects of type %T have no metadata", o)
		}
		if keep[name] == nil {
			keep[name] = map[key]bool{}
		}
		keep[name][key{obj.GetNamespace(), obj.GetName()}] = true
	}
	for _, res := range servedResources() {
		c := s.collections[res.name]
		for _, v := range c.current() {
			if !keep[res.name][v.key] {
				s.remove(c, v.key)
			}
		}
	}
	return s.put(objs, true)
}

// expire forgets the history: a watch from any resource version handed out so
// far is refused. Running watches are not disturbed.
func (s *state) expire() {
	s.rv++
	for _, c := range s.collections {
		c.oldest = s.rv
		c.wake()
	}
}

// current gives the present objects by key. The caller must not change it.
func (c *collection) current() []*version {
	if c.sorted == nil {
		c.sorted = make([]*version, 0, len(c.objects))
		for _, v := range c.objects {
			c.sorted = append(c.sorted, v)
		}
		sortVersions(c.sorted)
	}
	return c.sorted
}

func sortVersions(versions []*version) {
	sort.Slice(versions, func(i, j int) bool { return versions[i].key.less(versions[j].key) })
}

// snapshot gives the objects as they were at a resource version which the
// history still covers, by key.
func (c *collection) snapshot(rv uint64) []*version {
	n := len(c.events)
	for n > 0 && c.events[n-1].rv > rv {
		n--
	}
	if n == len(c.events) {
		return c.current()
	}
	objects := make(map[key]*version, len(c.objects))
	for k, v := range c.objects {
		objects[k] = v
	}
	for i := len(c.events) - 1; i >= n; i-- {
		e := c.events[i]
		if e.cur != nil {
			delete(objects, e.cur.key)
		}
		if e.prev != nil {
			objects[e.prev.key] = e.prev
		}
	}
	versions := make([]*version, 0, len(objects))
	for _, v := range objects {
		versions = append(versions, v)
	}
	sortVersions(versions)
	return versions
}

// seqAfter gives the number of the first event after a resource version.
func (c *collection) seqAfter(rv uint64) uint64 {
	return c.firstSeq + uint64(sort.Search(len(c.events), func(i int) bool { return c.events[i].rv > rv }))
}

// parseRV reads a resource version from a request; "" and "0" are 0.
func parseRV(text string) (uint64, error) {
	if text == "" {
		return 0, nil
	}
	rv, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errInvalidRV(text, err)
	}
	return rv, nil
}
