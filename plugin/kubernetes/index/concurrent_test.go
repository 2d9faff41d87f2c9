package index

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nearside-dns/nearside/test/property"
)

// readWhile runs readers until write returns. A reader is called repeatedly; the first error ends all of them and
// fails the test.
func readWhile(t *testing.T, readers int, read func() error, write func(failed func() bool)) {
	t.Helper()
	var (
		wg    sync.WaitGroup
		ended atomic.Bool
		reads atomic.Int64
	)
	errs := make(chan error, readers)
	for range readers {
		wg.Go(func() {
			for !ended.Load() {
				if err := read(); err != nil {
					errs <- err
					return
				}
				reads.Add(1)
			}
		})
	}
	write(func() bool { return len(errs) > 0 })
	ended.Store(true)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if reads.Load() == 0 {
		t.Error("nothing was read while the writer ran")
	}
}

// steady is a writer that never removes its own records when it replaces others.
type steady struct {
	*Index
	service  *Service
	imported *Service
	slice    *Slice
	pod      *Pod
}

const steadyNamespace = "steady"

var (
	steadyIP       = netip.MustParseAddr("10.1.0.1")
	steadyEndpoint = netip.MustParseAddr("10.2.0.1")
	steadyPodIP    = netip.MustParseAddr("10.3.0.1")
)

func newSteady(ix *Index) *steady {
	w := &steady{Index: ix}
	w.PutNamespace(steadyNamespace)
	w.update(rand.New(rand.NewPCG(0, 0)))
	return w
}

// update puts the records again, equal or with a change.
func (w *steady) update(r *rand.Rand) {
	w.service = &Service{
		Namespace: steadyNamespace, Name: "service", IPs: []netip.Addr{steadyIP},
		Ports: []Port{{Number: 1 + r.Int32N(2)}},
	}
	w.imported = &Service{
		Namespace: steadyNamespace, Name: "import", Kind: Headless, Ports: []Port{{Number: 1 + r.Int32N(2)}},
	}
	w.slice = &Slice{
		Namespace: steadyNamespace, Name: "slice", Service: "service", Import: "import",
		Endpoints: []Endpoint{{Addr: steadyEndpoint, Name: strconv.Itoa(r.IntN(2))}},
	}
	w.pod = &Pod{Namespace: steadyNamespace, Name: "pod", IPs: []netip.Addr{steadyPodIP}}
	w.PutService(w.service)
	w.PutImport(w.imported)
	w.PutSlice(w.slice)
	w.PutPod(w.pod)
}

func (w *steady) ReplaceServices(all []*Service) {
	w.Index.ReplaceServices(append(slices.Clip(all), w.service))
}

func (w *steady) ReplaceImports(all []*Service) {
	w.Index.ReplaceImports(append(slices.Clip(all), w.imported))
}

func (w *steady) ReplaceSlices(all []*Slice) {
	w.Index.ReplaceSlices(append(slices.Clip(all), w.slice))
}

func (w *steady) ReplacePods(all []*Pod) { w.Index.ReplacePods(append(slices.Clip(all), w.pod)) }

func (w *steady) ReplaceNamespaces(all []string) {
	w.Index.ReplaceNamespaces(append(slices.Clip(all), steadyNamespace))
}

// grow adds many records to one namespace, so that the tables grow; shrink removes them.
func (w *steady) grow(n int) {
	ip := netip.MustParseAddr("10.4.0.1")
	for i := range n {
		name := strconv.Itoa(i)
		w.PutNamespace("bulk" + name)
		w.PutService(&Service{Namespace: "bulk", Name: name, IPs: []netip.Addr{ip}})
		w.PutImport(&Service{Namespace: "bulk", Name: name, IPs: []netip.Addr{ip}})
		w.PutSlice(&Slice{Namespace: "bulk", Name: name, Service: name, Import: name, Endpoints: []Endpoint{{Addr: ip}}})
		w.PutPod(&Pod{Namespace: "bulk", Name: name, IPs: []netip.Addr{ip}})
		ip = ip.Next()
	}
}

func (w *steady) shrink(n int) {
	for i := range n {
		name := strconv.Itoa(i)
		w.DeleteNamespace("bulk" + name)
		w.DeleteService("bulk", name)
		w.DeleteImport("bulk", name)
		w.DeleteSlice("bulk", name)
		w.DeletePod("bulk", name)
	}
}

// TestReadersWhileWriting checks the invariants of every view during writes.
func TestReadersWhileWriting(t *testing.T) {
	o := newOperations(1, newAlphabet(2, 3, 3))
	ix := New()
	w := newSteady(ix)
	readWhile(t, 2,
		func() error { return errors.Join(checkSteady(ix), checkViews(ix, o.alphabet)) },
		func(failed func() bool) {
			for round := 0; round < 12 && !failed(); round++ {
				n := o.IntN(400)
				w.grow(n)
				for range 100 {
					o.next().run(w)
					w.update(o.Rand)
				}
				w.shrink(n)
			}
		})
}

// checkSteady looks up records that always exist.
func checkSteady(ix *Index) error {
	if !ix.HasNamespace(steadyNamespace) {
		return errors.New("the steady namespace was not found")
	}
	is := func(namespace string) bool { return namespace == steadyNamespace }
	e, i := ix.Service(steadyNamespace, "service"), ix.Import(steadyNamespace, "import")
	switch {
	case e == nil || i == nil:
		return fmt.Errorf("the steady Service was found: %t, the steady ServiceImport: %t", e != nil, i != nil)
	case e.Ready() != 1 || i.Ready() != 1:
		return fmt.Errorf("the steady Service has %d ready endpoints, the steady ServiceImport %d", e.Ready(), i.Ready())
	case ix.SliceRecord(steadyNamespace, "slice") == nil:
		return errors.New("the steady EndpointSlice was not found")
	case ix.PodRecord(steadyNamespace, "pod") == nil:
		return errors.New("the steady pod was not found")
	case !slices.ContainsFunc(ix.Services(), func(e *Entry) bool { return is(e.Service.Namespace) }):
		return errors.New("Services() is without the steady Service")
	case !slices.ContainsFunc(ix.Imports(), func(e *Entry) bool { return is(e.Service.Namespace) }):
		return errors.New("Imports() is without the steady ServiceImport")
	case !slices.ContainsFunc(ix.ServicesByIP(steadyIP), func(s *Service) bool { return is(s.Namespace) }):
		return errors.New("the ClusterIP of the steady Service was not found")
	case !slices.ContainsFunc(ix.SlicesByIP(steadyEndpoint), func(s *Slice) bool { return is(s.Namespace) }):
		return errors.New("the endpoint of the steady EndpointSlice was not found")
	case !slices.ContainsFunc(ix.PodsByIP(steadyPodIP), func(p *Pod) bool { return is(p.Namespace) }):
		return errors.New("the address of the steady pod was not found")
	}
	addresses := slices.Collect(ix.Addresses())
	if !slices.Contains(addresses, steadyIP) || !slices.Contains(addresses, steadyEndpoint) {
		return errors.New("Addresses() is without the steady addresses")
	}
	return nil
}

// checkViews checks every view that a reader can get.
func checkViews(ix *Index, a *alphabet) error {
	var errs []error
	ofService := func(s *Slice) string { return s.Service }
	ofImport := func(s *Slice) string { return s.Import }
	errs = append(errs, checkList("Services", ix.Services(), ofService), checkList("Imports", ix.Imports(), ofImport))
	for _, ns := range a.namespaces {
		for _, name := range a.services {
			if e := ix.Service(ns, name); e != nil {
				errs = append(errs, checkEntry(e, Name{ns, name}, ofService))
			}
			if e := ix.Import(ns, name); e != nil {
				errs = append(errs, checkEntry(e, Name{ns, name}, ofImport))
			}
		}
	}
	for _, ip := range slices.Concat(a.v4, a.v6, []netip.Addr{steadyIP, steadyEndpoint, steadyPodIP}) {
		errs = append(errs,
			checkFound("ServicesByIP", ip, ix.ServicesByIP(ip), func(s *Service) []netip.Addr { return s.IPs }),
			checkFound("ServicesByExternalIP", ip, ix.ServicesByExternalIP(ip), (*Service).externalIPs),
			checkFound("SlicesByIP", ip, ix.SlicesByIP(ip), (*Slice).addresses),
			checkFound("PodsByIP", ip, ix.PodsByIP(ip), func(p *Pod) []netip.Addr { return p.IPs }),
		)
	}
	return errors.Join(errs...)
}

// checkList checks all Services or ServiceImports; owner returns the name in an EndpointSlice.
func checkList(reader string, all []*Entry, owner func(*Slice) string) error {
	var errs []error
	for _, e := range all {
		if e == nil || e.Service == nil {
			return fmt.Errorf("%s() has an entry without a record", reader)
		}
		errs = append(errs, checkEntry(e, e.Service.key(), owner))
	}
	if !slices.IsSortedFunc(all, func(a, b *Entry) int { return a.Service.key().compare(b.Service.key()) }) {
		errs = append(errs, fmt.Errorf("%s() is out of order", reader))
	}
	return errors.Join(errs...)
}

func checkEntry(e *Entry, k Name, owner func(*Slice) string) error {
	if e.Service == nil || e.Service.key() != k {
		return fmt.Errorf("the entry of %v has the Service %+v", k, e.Service)
	}
	if e.Generation() == nil {
		return fmt.Errorf("the entry of %v has no generation", k)
	}
	for i, s := range e.Slices {
		if s == nil || s.Namespace != k.Namespace || owner(s) != k.Name {
			return fmt.Errorf("the entry of %v has the EndpointSlice %+v", k, s)
		}
		if i > 0 && e.Slices[i-1].Name >= s.Name {
			return fmt.Errorf("the EndpointSlices of %v are %s", k, keys(e.Slices))
		}
	}
	return nil
}

// checkFound checks the records found by an address: each has it, and each is found once.
func checkFound[R interface {
	*T
	key() Name
}, T any](reader string, ip netip.Addr, found []R, addresses func(R) []netip.Addr) error {
	for i, r := range found {
		if r == nil || !slices.Contains(addresses(r), ip) {
			return fmt.Errorf("%s(%s) found %+v", reader, ip, r)
		}
		if i > 0 && found[i-1].key().compare(r.key()) >= 0 {
			return fmt.Errorf("%s(%s) = %s: out of order or twice", reader, ip, keys(found))
		}
	}
	return nil
}

// TestAnswersWhileWriting stores answers in readers during writes.
func TestAnswersWhileWriting(t *testing.T) {
	t.Run("random operations", func(t *testing.T) {
		property.Seeds(t, 0, 3, func(t *testing.T, seed uint64) {
			o, ix := newOperations(seed, newAlphabet(2, 2, 2)), New()
			keepWhile(t, ix, o.questions(), 2500, func() string {
				op := o.next()
				op.run(ix)
				return op.text
			})
		})
	})
	t.Run("large records", func(t *testing.T) {
		l := newLargeRecords()
		keepWhile(t, l.ix, l.questions(), 700, l.write)
	})
}

// keepWhile answers questions in readers while write is called. Between two calls, every stored answer that counts as
// valid must equal the current one.
func keepWhile(t *testing.T, ix *Index, questions []question, steps int, write func() string) {
	t.Helper()
	answers := make(chan stored, 100)
	cache := map[question][]stored{}
	check := func() error {
		for range len(answers) { // not those added during the loop, which might never end
			a := <-answers
			cache[a.question] = append(cache[a.question], a)
		}
		for q, all := range cache {
			now := q.ask(ix)
			for _, a := range all {
				if err := a.check(now); err != nil {
					return err
				}
			}
			valid := slices.DeleteFunc(all, func(a stored) bool { return !a.valid() })
			cache[q] = valid[:min(1, len(valid))]
		}
		return nil
	}
	readWhile(t, 2,
		func() error {
			a := questions[rand.IntN(len(questions))].ask(ix)
			select {
			case answers <- a:
			default: // the writer has enough answers to check
			}
			return nil
		},
		func(func() bool) {
			for step := range steps {
				text := write()
				if err := check(); err != nil {
					t.Errorf("step %d, after %s:\n%v", step, text, err)
					return
				}
			}
		})
}

// largeRecords are so large that writing them takes a while. A reader is likely to run between any two steps of the
// writer.
type largeRecords struct {
	*rand.Rand
	ix        *Index
	addresses []netip.Addr
}

const largeNamespace = "ns"

var largeServices = []string{"a", "b"}

func newLargeRecords() *largeRecords {
	l := &largeRecords{Rand: rand.New(rand.NewPCG(1, 0)), ix: New(), addresses: newAlphabet(0, 0, 600).v4}
	l.ix.PutNamespace(largeNamespace)
	for _, service := range largeServices {
		for i := range 300 {
			l.ix.PutSlice(&Slice{Namespace: largeNamespace, Name: service + strconv.Itoa(i), Service: service, Import: service})
		}
	}
	return l
}

func (l *largeRecords) questions() []question {
	all := []question{namespaceQuestion(largeNamespace)}
	for _, service := range largeServices {
		all = append(all, serviceQuestion{largeNamespace, service}, importQuestion{largeNamespace, service})
	}
	for i := 0; i < len(l.addresses); i += 99 {
		all = append(all, pointerQuestion{l.addresses[i]}, podQuestion{l.addresses[i]})
	}
	return all
}

// write makes a random change and returns its description.
func (l *largeRecords) write() string {
	from := l.IntN(3) * 100
	addresses := l.addresses[from : from+400]
	service := pick(l.Rand, largeServices)
	switch l.IntN(10) {
	case 8:
		l.ix.DeleteNamespace(largeNamespace)
		return "DeleteNamespace"
	case 9:
		l.ix.ReplaceNamespaces([]string{largeNamespace})
		return "ReplaceNamespaces"
	case 6:
		l.ix.DeleteImport(largeNamespace, service)
		return "DeleteImport " + service
	case 7:
		l.ix.PutImport(&Service{Namespace: largeNamespace, Name: service, IPs: addresses})
		return fmt.Sprint("PutImport ", service, " from ", from)
	case 0:
		l.ix.DeleteService(largeNamespace, service)
		return "DeleteService " + service
	case 1:
		l.ix.DeleteSlice(largeNamespace, "large")
		return "DeleteSlice"
	case 2:
		l.ix.DeletePod(largeNamespace, "large")
		return "DeletePod"
	case 3:
		l.ix.PutPod(&Pod{Namespace: largeNamespace, Name: "large", IPs: addresses})
		return fmt.Sprint("PutPod from ", from)
	case 4:
		l.ix.PutService(&Service{Namespace: largeNamespace, Name: service, IPs: addresses})
		return fmt.Sprint("PutService ", service, " from ", from)
	default:
		s := &Slice{Namespace: largeNamespace, Name: "large", Service: service, Import: pick(l.Rand, largeServices)}
		for _, a := range addresses {
			s.Endpoints = append(s.Endpoints, Endpoint{Addr: a})
		}
		l.ix.PutSlice(s)
		return fmt.Sprint("PutSlice of ", service, " from ", from)
	}
}
