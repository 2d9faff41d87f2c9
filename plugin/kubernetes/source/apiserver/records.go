package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// records writes the objects of one resource to the index.
type records interface {
	// strip returns the record of an object, or the equal record in the index; nil for an object without a record.
	strip(obj any) (any, error)
	// put strips an object into the index, or removes it if it no longer has a record.
	put(obj any) error
	remove(obj any) error
	// replace replaces all records of the resource in the index by stripped records.
	replace(stripped []any)
	// run does the work beside events, until ctx ends.
	run(ctx context.Context)
}

// typed implements records for objects O, or decoded ones, with records of type R.
type typed[O metav1.Object, R any] struct {
	toRecord  func(O) *R
	ending    func(namespace, name string) *R // the record of an object that is being deleted; nil if it is as before
	known     func(namespace, name string) *R // the record in the index; nil if records are not reused
	same      func(present, stripped *R) bool
	putRecord func(*R)
	delete    func(namespace, name string)
	replaceBy func([]*R)
	after     func(metav1.Object, *R) // called when an event has been processed; may be nil
	beside    func(context.Context)   // the work beside events; may be nil
}

// record returns the metadata of an object, and its record.
func (t *typed[O, R]) record(obj any) (o metav1.Object, r *R, err error) {
	switch obj := obj.(type) {
	case *decoded:
		var ok bool
		if r, ok = obj.record.(*R); !ok && obj.record != nil {
			return nil, nil, fmt.Errorf("invalid %s: want %T", obj.Kind, *new(O))
		}
		o = obj
	case O:
		o, r = obj, t.toRecord(obj)
	default:
		return nil, nil, fmt.Errorf("invalid object %T: want %T", obj, *new(O))
	}
	if t.ending != nil && o.GetDeletionTimestamp() != nil {
		r = t.ending(o.GetNamespace(), o.GetName())
	}
	return o, r, nil
}

func (t *typed[O, R]) strip(obj any) (any, error) {
	o, r, err := t.record(obj)
	if err != nil {
		return nil, err
	}
	// After a relist nearly all objects are unchanged. Without reuse of their records a relist would need the memory twice.
	// Resource versions are not compared: a server that was restored from a backup assigns the same ones again.
	if t.known != nil && r != nil {
		if present := t.known(o.GetNamespace(), o.GetName()); present != nil && (present == r || t.same(present, r)) {
			return present, nil
		}
	}
	return r, nil
}

func (t *typed[O, R]) put(obj any) error {
	o, r, err := t.record(obj)
	if err != nil {
		return err
	}
	switch {
	case r == nil:
		t.delete(o.GetNamespace(), o.GetName())
	case t.known == nil:
		t.putRecord(r)
	case t.known(o.GetNamespace(), o.GetName()) != r:
		changed := *r // it may be a record that the index had when it was decoded: readers may still have that
		t.putRecord(&changed)
	}
	t.processed(o, r)
	return nil
}

func (t *typed[O, R]) remove(obj any) error {
	o, r, err := t.record(obj)
	if err != nil {
		return err
	}
	t.delete(o.GetNamespace(), o.GetName())
	t.processed(o, r)
	return nil
}

func (t *typed[O, R]) processed(o metav1.Object, r *R) {
	if t.after != nil {
		t.after(o, r)
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

func (t *typed[O, R]) run(ctx context.Context) {
	if t.beside != nil {
		t.beside(ctx)
	}
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
			toRecord: func(o *corev1.Pod) *index.Pod { return podRecord(s.stripper, o) }, known: ix.PodRecord,
			ending:    func(namespace, name string) *index.Pod { return s.ending(ix, namespace, name) },
			same:      (*index.Pod).Equal,
			putRecord: ix.PutPod, delete: ix.DeletePod, replaceBy: ix.ReplacePods,
		}
	case source.ServiceImports:
		return &typed[*mcsv1beta1.ServiceImport, index.Service]{
			toRecord: s.stripper.Import, known: ix.ImportRecord,
			same:      (*index.Service).Equal,
			putRecord: ix.PutImport, delete: ix.DeleteImport, replaceBy: ix.ReplaceImports,
		}
	case source.ClusterProperties:
		return s.clusterProperties(ix)
	case source.Nodes:
		return s.nodes(ix)
	default:
		return s.namespaces(ix)
	}
}

// podRecord returns the record of a pod, nil of one that is being deleted.
func podRecord(s source.Stripper, o *corev1.Pod) *index.Pod {
	if o.DeletionTimestamp != nil {
		return nil
	}
	return s.Pod(o)
}

// ending returns the record of a pod that is being deleted. Of its record only Ending changes: the pod may answer as long as it runs, and its last
// updates may lack its address. A pod without a record is not added then.
func (s *Source) ending(ix *index.Index, namespace, name string) *index.Pod {
	known := ix.PodRecord(namespace, name)
	if known == nil || known.Ending || !s.options.SearchPaths {
		return known
	}
	ending := *known
	ending.Ending = true
	return &ending
}

// namespaceRecord returns the name of a namespace, nil if DNS cannot carry it.
func namespaceRecord(s source.Stripper, o *corev1.Namespace) *string {
	if name := s.Namespace(o); name != "" {
		return &name
	}
	return nil
}

func (s *Source) namespaces(ix *index.Index) records {
	return &typed[*corev1.Namespace, string]{
		toRecord:  func(o *corev1.Namespace) *string { return namespaceRecord(s.stripper, o) },
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

// clusterProperties sets the ID of the cluster from its ClusterProperty.
func (s *Source) clusterProperties(ix *index.Index) records {
	return &typed[*source.ClusterProperty, index.Symbol]{
		toRecord: func(o *source.ClusterProperty) *index.Symbol {
			if id := s.stripper.ClusterIDOf(o); id != (index.Symbol{}) {
				return &id
			}
			return nil
		},
		putRecord: func(id *index.Symbol) { ix.SetClusterID(*id) },
		delete: func(_, name string) {
			if name == source.ClusterPropertyName {
				ix.SetClusterID(index.Symbol{})
			}
		},
		replaceBy: func(ids []*index.Symbol) {
			if len(ids) == 0 {
				ix.SetClusterID(index.Symbol{})
				return
			}
			ix.SetClusterID(*ids[0])
		},
	}
}

// nodes stores the metadata of Nodes; the ranges of their pods' addresses are read beside the watch.
func (s *Source) nodes(ix *index.Index) records {
	ranges := s.podCIDRs(ix)
	return &typed[*metav1.PartialObjectMetadata, index.Node]{
		toRecord: func(o *metav1.PartialObjectMetadata) *index.Node {
			return s.stripper.Node(o.Labels, o.Name, string(o.UID))
		},
		known:     func(_, name string) *index.Node { return ix.NodeNamed(name) },
		same:      (*index.Node).Covers,
		putRecord: ix.PutNode,
		delete:    func(_, name string) { ix.DeleteNode(index.NewSymbol(name)) },
		replaceBy: func(all []*index.Node) {
			ix.ReplaceNodes(all)
			ranges.listed(all)
		},
		after:  ranges.observe,
		beside: ranges.run,
	}
}
