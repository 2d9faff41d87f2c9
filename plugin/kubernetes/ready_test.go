package kubernetes

import (
	"testing"

	"github.com/coredns/coredns/plugin/ready"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var _ ready.Readiness = (*Kubernetes)(nil)

func TestReady(t *testing.T) {
	synced, unread := source.Status{Resource: source.Services, Synced: true}, source.Status{Resource: source.Pods}
	frozen := source.Status{Resource: source.EndpointSlices, Synced: true, Frozen: true}
	for _, c := range []struct {
		name          string
		is            []source.Status
		ready, synced bool
	}{
		{"all synced", []source.Status{synced, synced}, true, true},
		{"one not synced", []source.Status{synced, unread}, false, false},
		{"none synced", []source.Status{unread, unread}, false, false},
		{"one frozen", []source.Status{synced, frozen}, false, true},
		{"nothing to read", nil, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local")
			k.attach(index.New(), func() []source.Status { return c.is })
			if got := k.Ready(); got != c.ready {
				t.Errorf("ready is %v, want %v", got, c.ready)
			}
			if got := k.hasSynced(); got != c.synced {
				t.Errorf("synced is %v, want %v", got, c.synced)
			}
		})
	}
}

// Plugin ready checks before the kubernetes plugin has started, too.
func TestReady_BeforeTheStart(t *testing.T) {
	k := parsed(t, kubernetesDirective, "kubernetes cluster.local")
	if k.Ready() {
		t.Error("ready before the start")
	}
}

// The server is ready again when a frozen watch recovers; after the first sync it answers all the time.
func TestReady_Thaw(t *testing.T) {
	status := source.Status{Resource: source.Services}
	k := answering(t, "kubernetes cluster.local", namespace("shop"))
	k.attach(index.New(), func() []source.Status { return []source.Status{status} })
	for _, step := range []struct {
		name          string
		is            source.Status
		ready, synced bool
	}{
		{"start", source.Status{}, false, false},
		{"read", source.Status{Synced: true}, true, true},
		{"frozen", source.Status{Synced: true, Frozen: true}, false, true},
		{"thawed", source.Status{Synced: true}, true, true},
	} {
		status = step.is
		if k.Ready() != step.ready || k.hasSynced() != step.synced {
			t.Errorf("%s: ready is %v, synced is %v, want %v and %v", step.name, k.Ready(), k.hasSynced(), step.ready, step.synced)
		}
	}
}
