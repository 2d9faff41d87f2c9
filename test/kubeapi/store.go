package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
}

// stored is an object in etcd.
type stored struct {
	resource *resource
	uid      types.UID
	created  metav1.Time
	raw      []byte
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
	End []byte `json:"range_end,omitempty"`
}

// empty deletes all objects, those of earlier tests too.
func (s *store) empty() error {
	var all []operation
	for _, r := range resources {
		end := []byte(r.keys)
		end[len(end)-1]++
		all = append(all, operation{Delete: &keyRange{[]byte(r.keys), end}, resource: r})
	}
	s.objects = map[string]stored{}
	return s.write(all, 1)
}

// put writes objects, with up to perTxn of them in a transaction; with skipSame
// only those that differ.
func (s *store) put(objects []runtime.Object, perTxn int, skipSame bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
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
	return s.removeKeys(keys)
}

// removeKeys deletes those of the keys that exist.
func (s *store) removeKeys(keys []string) error {
	var all []operation
	for _, key := range keys {
		if o, ok := s.objects[key]; ok {
			all = append(all, operation{Delete: &keyRange{Key: []byte(key)}, resource: o.resource})
			delete(s.objects, key)
		}
	}
	return s.write(all, 1)
}

// replace deletes other objects, and puts those that differ.
func (s *store) replace(objects []runtime.Object) error {
	s.mu.Lock()
	remaining := map[string]bool{}
	for _, object := range objects {
		key, _, err := s.encode(object)
		if err != nil {
			s.mu.Unlock()
			return fmt.Errorf("replace: %w", err)
		}
		remaining[key] = true
	}
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(s.objects)), func(key string) bool { return remaining[key] })
	err := s.removeKeys(keys)
	s.mu.Unlock()
	if err != nil {
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
		o = stored{resource: r, uid: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012x", nextUID())), created: metav1.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)}
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

var lastUID struct {
	sync.Mutex
	n int
}

func nextUID() int {
	lastUID.Lock()
	defer lastUID.Unlock()
	lastUID.n++
	return lastUID.n
}

// write carries operations out in order, and waits until the API server has seen
// them.
func (s *store) write(all []operation, perTxn int) error {
	last := map[*resource]operation{}
	seen := map[*resource]uint64{}
	for len(all) > 0 {
		n := txnLength(all, perTxn)
		changed, revision, err := s.transact(all[:n])
		if err != nil {
			return err
		}
		for _, o := range all[:n] {
			if last[o.resource] = o; changed {
				seen[o.resource] = revision
			}
		}
		all = all[n:]
	}
	for r, revision := range seen {
		if perTxn > 1 { // several objects have this revision, and the API server may have seen some of them only
			var err error
			if _, revision, err = s.transact([]operation{last[r]}); err != nil {
				return err
			}
		}
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

// transact carries operations out in one transaction. It returns whether any
// changed anything, and the revision of etcd.
func (s *store) transact(all []operation) (changed bool, revision uint64, err error) {
	body, err := json.Marshal(map[string]any{"success": all})
	if err != nil {
		return false, 0, err
	}
	response, err := http.Post(s.plane.EtcdURL()+"/v3/kv/txn", "application/json", bytes.NewReader(body)) // #nosec G107 -- a server of ours
	if err != nil {
		return false, 0, fmt.Errorf("write to etcd: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var result struct {
		Header struct {
			Revision uint64 `json:"revision,string"`
		} `json:"header"`
		Responses []struct {
			Delete *struct {
				Deleted string `json:"deleted"` // absent for none
			} `json:"response_delete_range"`
		} `json:"responses"`
		Message string `json:"message"` // of an error
	}
	if err := json.NewDecoder(response.Body).Decode(&result); err != nil {
		return false, 0, fmt.Errorf("write to etcd: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return false, 0, fmt.Errorf("write to etcd: %s: %s", response.Status, result.Message)
	}
	for _, r := range result.Responses {
		changed = changed || r.Delete == nil || r.Delete.Deleted != ""
	}
	return changed, result.Header.Revision, nil
}

// advance makes a new revision, and returns it.
func (s *store) advance() (uint64, error) {
	_, revision, err := s.transact([]operation{{Put: &keyValue{Key: []byte("/nearside/revision")}}})
	return revision, err
}

// await waits until the API server's cache of a resource has a revision of etcd,
// so that lists from the cache, too, have what was written.
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
