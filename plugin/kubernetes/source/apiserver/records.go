package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// records is the way of one resource's objects into the index.
type records interface {
	// strip returns the record of an object, the one in the index where that says the same; nil where
	// there is none.
	strip(obj any) (any, error)
	// put strips an object into the index, or removes it from there if it has no record any more.
	put(obj any) error
	remove(obj any) error
	// replace makes stripped records, and no others, the content of the index.
	replace(stripped []any)
}

// typed implements records for objects O with records of type R.
type typed[O metav1.Object, R any] struct {
	toRecord  func(O) *R
	known     func(namespace, name string) *R
	same      func(present, stripped *R) bool
	putRecord func(*R)
	delete    func(namespace, name string)
	replaceBy func([]*R)
	after     func(O) // called when an event has been processed; may be nil
}

func (t *typed[O, R]) object(obj any) (o O, err error) {
	o, ok := obj.(O)
	if !ok {
		return o, fmt.Errorf("%T where %T was expected", obj, o)
	}
	return o, nil
}

func (t *typed[O, R]) strip(obj any) (any, error) {
	o, err := t.object(obj)
	if err != nil {
		return nil, err
	}
	r := t.toRecord(o)
	// After a relist nearly all objects are as they were. To keep their records is what keeps a relist
	// from needing the memory twice. Their version is not asked: a server that was restored from a
	// backup gives the same ones again.
	if present := t.known(o.GetNamespace(), o.GetName()); present != nil && r != nil && t.same(present, r) {
		return present, nil
	}
	return r, nil
}

func (t *typed[O, R]) put(obj any) error {
	o, err := t.object(obj)
	if err != nil {
		return err
	}
	if r := t.toRecord(o); r != nil {
		t.putRecord(r)
	} else {
		t.delete(o.GetNamespace(), o.GetName())
	}
	t.processed(o)
	return nil
}

func (t *typed[O, R]) remove(obj any) error {
	o, err := t.object(obj)
	if err != nil {
		return err
	}
	t.delete(o.GetNamespace(), o.GetName())
	t.processed(o)
	return nil
}

func (t *typed[O, R]) processed(o O) {
	if t.after != nil {
		t.after(o)
	}
}

func (t *typed[O, R]) replace(stripped []any) {
	all := make([]*R, 0, len(stripped))
	for _, r := range stripped {
		if r, ok := r.(*R); ok && r != nil {
			all = append(all, r)
		}
	}
	t.replaceBy(all)
}

func (s *Source) records(resource string, ix *index.Index) records {
	switch resource {
	case source.Services:
		return &typed[*corev1.Service, index.Service]{
			toRecord: s.stripper.Service, known: ix.ServiceRecord,
			same:      (*index.Service).Equal,
			putRecord: ix.PutService, delete: ix.DeleteService, replaceBy: ix.ReplaceServices,
		}
	case source.EndpointSlices:
		return &typed[*discoveryv1.EndpointSlice, index.Slice]{
			toRecord: s.stripper.Slice, known: ix.SliceRecord,
			same:      (*index.Slice).Equal,
			putRecord: ix.PutSlice, delete: ix.DeleteSlice, replaceBy: ix.ReplaceSlices,
			after: programmed{ix}.observe,
		}
	case source.Pods:
		return &typed[*corev1.Pod, index.Pod]{
			toRecord: func(o *corev1.Pod) *index.Pod { return s.pod(o, ix) }, known: ix.PodRecord,
			same:      (*index.Pod).Equal,
			putRecord: ix.PutPod, delete: ix.DeletePod, replaceBy: ix.ReplacePods,
		}
	default:
		return s.namespaces(ix)
	}
}

// pod keeps the record of a pod that is being deleted as it was, until it is gone: it may answer for
// as long as it runs, and its last updates may have lost its address. One that was not known before
// is not taken up.
func (s *Source) pod(o *corev1.Pod, ix *index.Index) *index.Pod {
	if o.DeletionTimestamp != nil {
		return ix.PodRecord(o.Namespace, o.Name)
	}
	return s.stripper.Pod(o)
}

func (s *Source) namespaces(ix *index.Index) records {
	return &typed[*corev1.Namespace, string]{
		toRecord: func(o *corev1.Namespace) *string {
			if name := s.stripper.Namespace(o); name != "" {
				return &name
			}
			return nil
		},
		known:     func(string, string) *string { return nil }, // a name is all there is to keep
		putRecord: func(name *string) { ix.PutNamespace(*name) },
		delete:    func(_, name string) { ix.DeleteNamespace(name) },
		replaceBy: func(names []*string) {
			all := make([]string, len(names))
			for i, name := range names {
				all[i] = *name
			}
			ix.ReplaceNamespaces(all)
		},
	}
}
