package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// The limits of one transaction of etcd, with room for what else is in it.
const (
	maxOps   = 100
	maxBytes = 512 << 10
)

// store writes objects into etcd, through the JSON form of its API.
type store struct {
	plane *controlplane.ControlPlane

	mu      sync.Mutex
	objects map[string]stored // by key
	uids    int
}

// stored is an object in etcd.
type stored struct {
	resource *resource
	uid      types.UID
	created  metav1.Time
	raw      []byte // nil if it is not from this package
}

// newStore returns a store with the objects that are in etcd.
func newStore(plane *controlplane.ControlPlane) (*store, error) {
	s := &store{plane: plane, objects: map[string]stored{}}
	for _, r := range resources {
		end := []byte(r.keys)
		end[len(end)-1]++
		var all struct {
			KVs []keyValue `json:"kvs"`
		}
		if err := s.call("range", map[string]any{"key": []byte(r.keys), "range_end": end, "keys_only": true}, &all); err != nil {
			return nil, err
		}
		for _, kv := range all.KVs {
			s.objects[string(kv.Key)] = stored{resource: r}
		}
	}
	return s, nil
}

// operation is a write of etcd.
type operation struct {
	Put    *keyValue `json:"requestPut,omitempty"`
	Delete *keyRange `json:"requestDeleteRange,omitempty"`

	resource *resource
}

type keyValue struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

type keyRange struct {
	Key []byte `json:"key"`
}

// empty deletes all objects, while no client watches.
func (s *store) empty() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeKeys(slices.Collect(maps.Keys(s.objects)), maxOps)
}

// put writes objects, with up to perTxn of them in a transaction; with skipSame
// only those that differ. The caller has locked mu.
func (s *store) put(objects []runtime.Object, perTxn int, skipSame bool) error {
	var all []operation
	for _, object := range objects {
		key, o, err := s.encode(object)
		if err != nil {
			return fmt.Errorf("put: %w", err)
		}
		if skipSame && bytes.Equal(o.raw, s.objects[key].raw) {
			continue
		}
		s.objects[key] = o
		all = append(all, operation{Put: &keyValue{[]byte(key), o.raw}, resource: o.resource})
	}
	return s.write(all, perTxn)
}

// remove deletes objects.
func (s *store) remove(objects []runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, object := range objects {
		key, _, err := s.encode(object)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		keys = append(keys, key)
	}
	return s.removeKeys(keys, 1)
}

// removeKeys deletes those of the keys that exist.
func (s *store) removeKeys(keys []string, perTxn int) error {
	var all []operation
	for _, key := range keys {
		if o, ok := s.objects[key]; ok {
			all = append(all, operation{Delete: &keyRange{Key: []byte(key)}, resource: o.resource})
			delete(s.objects, key)
		}
	}
	return s.write(all, perTxn)
}

// replace deletes other objects, and puts those that differ.
func (s *store) replace(objects []runtime.Object) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	remaining := map[string]bool{}
	for _, object := range objects {
		key, _, err := s.encode(object)
		if err != nil {
			return fmt.Errorf("replace: %w", err)
		}
		remaining[key] = true
	}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(s.objects)), func(key string) bool { return remaining[key] })
	if err := s.removeKeys(keys, 1); err != nil {
		return err
	}
	return s.put(objects, 1, true)
}

// encode returns the key and the stored form of an object.
func (s *store) encode(object runtime.Object) (string, stored, error) {
	r, err := resourceOf(object)
	if err != nil {
		return "", stored{}, err
	}
	object = object.DeepCopyObject()
	object.GetObjectKind().SetGroupVersionKind(r.gvk())
	meta, ok := object.(metav1.Object)
	if !ok {
		return "", stored{}, fmt.Errorf("%T has no metadata", object)
	}
	key := r.keys + strings.TrimPrefix(meta.GetNamespace()+"/"+meta.GetName(), "/")
	o := s.objects[key]
	if o.raw == nil {
		s.uids++
		o = stored{resource: r, uid: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", s.uids)), created: metav1.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)}
	}
	if meta.GetUID() == "" {
		meta.SetUID(o.uid)
	}
	if created := meta.GetCreationTimestamp(); created.IsZero() {
		meta.SetCreationTimestamp(o.created)
	}
	o.uid, o.created = meta.GetUID(), meta.GetCreationTimestamp()
	if r.custom {
		o.raw, err = json.Marshal(object)
		return key, o, err
	}
	var raw bytes.Buffer
	err = protobuf.NewSerializer(scheme, scheme).Encode(object, &raw)
	o.raw = raw.Bytes()
	return key, o, err
}

// write carries operations out in order, with up to perTxn of them in a
// transaction, and waits until the API server has seen them.
func (s *store) write(all []operation, perTxn int) error {
	seen := map[*resource]uint64{}
	transact := func(all []operation, perTxn int) error {
		for len(all) > 0 {
			n := txnLength(all, perTxn)
			revision, err := s.transact(all[:n])
			if err != nil {
				return err
			}
			for _, o := range all[:n] {
				seen[o.resource] = revision
			}
			all = all[n:]
		}
		return nil
	}
	var last []operation
	if perTxn > 1 {
		all, last = cutLast(all)
	}
	if err := transact(all, perTxn); err != nil {
		return err
	}
	if err := transact(last, 1); err != nil {
		return err
	}
	for r, revision := range seen {
		for _, version := range r.versions {
			if err := s.await(r, version, revision); err != nil {
				return err
			}
		}
	}
	return nil
}

// txnLength returns how many of the operations fit into a transaction.
func txnLength(all []operation, limit int) (n int) {
	for size := 0; n < min(len(all), limit) && (n == 0 || size < maxBytes); n++ {
		if put := all[n].Put; put != nil {
			size += len(put.Value)
		}
	}
	return n
}

// cutLast separates the last operation of each resource, so that it gets its own
// revision: when the API server has seen one change of a revision, it may lack the
// others.
func cutLast(all []operation) (others, last []operation) {
	seen := map[*resource]bool{}
	for _, o := range slices.Backward(all) {
		if seen[o.resource] {
			others = append(others, o)
		} else {
			seen[o.resource], last = true, append(last, o)
		}
	}
	slices.Reverse(others)
	return others, last
}

// transact carries operations out in one transaction, and returns its revision.
func (s *store) transact(all []operation) (uint64, error) {
	var result struct {
		Header struct {
			Revision uint64 `json:"revision,string"`
		} `json:"header"`
	}
	err := s.call("txn", map[string]any{"success": all}, &result)
	return result.Header.Revision, err
}

// call makes a request to etcd.
func (s *store) call(method string, request, result any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	response, err := http.Post(s.plane.EtcdURL()+"/v3/kv/"+method, "application/json", bytes.NewReader(body)) // #nosec G107 -- a server of ours
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if body, err = io.ReadAll(response.Body); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s: %s", response.Status, body)
	}
	if err := json.Unmarshal(body, result); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

// advance makes a new revision, and returns it.
func (s *store) advance() (uint64, error) {
	return s.transact([]operation{{Put: &keyValue{Key: []byte("/nearside/revision")}}})
}

// await waits until the API server's cache of a resource has a revision of etcd,
// so that lists from the cache, too, have the objects that were written.
func (s *store) await(r *resource, version string, revision uint64) error {
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		// The selector matches nothing, so that the answer is short.
		request := s.plane.Client().CoreV1().RESTClient().Get().AbsPath(r.path(version)).
			Param("resourceVersion", strconv.FormatUint(revision, 10)).Param("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan)).
			Param("fieldSelector", "metadata.name=none")
		if err = request.Do(context.Background()).Error(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("kube-apiserver does not have revision %d of %s: %w", revision, r.name, err)
}
