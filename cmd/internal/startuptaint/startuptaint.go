// Package startuptaint removes a startup taint from this node once nodecache is ready, so that the scheduler assigns pods
// to a new node after the node has its cache. Input: the key of the taint, the name of the node and the state of nodecache;
// output: the Node without the taint, and log lines. It imports no typed client of client-go, and an error of the API
// server has no effect on DNS.
package startuptaint

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/nearside-dns/nearside/cmd/internal/flagvalue"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

const (
	// readyInterval is the time between two checks of the state of nodecache until it is ready.
	readyInterval = 100 * time.Millisecond
	// firstPause is the pause after a removal and after the first error. It doubles with each request to the API server,
	// up to maxRetry after errors and up to maxPause while the node does not have the taint.
	firstPause = time.Second
	maxRetry   = 30 * time.Second
	// maxPause is short enough for a node group that gets the taint later, and long enough for the API server: 5,000 nodes
	// send 17 requests a second.
	maxPause = 5 * time.Minute
	// requestTimeout bounds one request to the API server.
	requestTimeout = 10 * time.Second
)

// Remover removes the taint of this node while nodecache is ready. The zero Remover with Node and Ready removes none until
// its flag is set.
type Remover struct {
	Node  func() string // the name of this node, "" if unknown
	Ready func() bool   // whether nodecache answers queries of the node

	key  string // of the taint, "" for none
	api  apiserver.Connection
	stop context.CancelFunc
}

// Flags adds the flag with the key of the taint.
func (r *Remover) Flags(f *flag.FlagSet) {
	f.Var(flagvalue.Text{Value: &r.key, Check: checkKey}, "remove-taint",
		"`key` of the taint that is removed from this node once nodecache is ready, such as nearside.dev/nodecache-not-ready")
}

// checkKey checks the key of a taint. It refuses taints of Kubernetes itself, whose controllers would add them again.
func checkKey(key string) error {
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	domain, _, _ := strings.Cut("."+key, "/")
	if strings.HasSuffix(domain, ".kubernetes.io") || strings.HasSuffix(domain, ".k8s.io") {
		return fmt.Errorf("%s is a taint of Kubernetes: want a startup taint, such as nearside.dev/nodecache-not-ready", key)
	}
	return nil
}

// Started removes the taint in the background.
func (r *Remover) Started() {
	if r.key == "" {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go r.run(ctx)
}

// Stopped ends the goroutine of Started.
func (r *Remover) Stopped() {
	if r.stop != nil {
		r.stop()
	}
}

func (r *Remover) run(ctx context.Context) {
	node := r.Node()
	if node == "" {
		clog.Errorf("Taint %s stays on this node: its name is unknown; set NODE_NAME in the environment, or -node-name", r.key)
		return
	}
	client, err := r.api.Core()
	if err != nil {
		clog.Errorf("Taint %s stays on node %s: %s", r.key, node, err)
		return
	}
	r.follow(ctx, func(ctx context.Context) (bool, error) { return remove(ctx, client, node, r.key) }, node)
}

// follow removes the taint as often as it is added: Karpenter adds the startup taints of a node again when it registers
// the node after they were removed (kubernetes-sigs/karpenter#1772), and managed node groups add new taints to nodes that
// run (cilium/cilium#17103).
func (r *Remover) follow(ctx context.Context, remove func(context.Context) (bool, error), node string) {
	pause, logged := firstPause, ""
	for {
		wait := readyInterval
		if r.Ready() {
			removed, err := remove(ctx)
			wait = pause
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				if text := err.Error(); text != logged {
					clog.Errorf("Taint %s stays on node %s until a retry succeeds: %s", r.key, node, text)
					logged = text
				}
				wait = min(pause, maxRetry)
				pause = min(2*pause, maxRetry)
			case removed:
				clog.Infof("Taint %s removed from node %s: nodecache is ready", r.key, node)
				pause, wait, logged = firstPause, firstPause, ""
			default:
				pause, logged = min(2*pause, maxPause), ""
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// remove removes the taints with the key from a node, and returns whether it had one.
func remove(ctx context.Context, client rest.Interface, node, key string) (removed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var n corev1.Node
	if err := client.Get().Resource("nodes").Name(node).Do(ctx).Into(&n); err != nil {
		return false, fmt.Errorf("read node %s: %w", node, err)
	}
	patch, err := without(n.Spec.Taints, key)
	if patch == nil || err != nil {
		return false, err
	}
	if err := client.Patch(types.JSONPatchType).Resource("nodes").Name(node).Body(patch).Do(ctx).Error(); err != nil {
		return false, fmt.Errorf("patch node %s: %w", node, err)
	}
	return true, nil
}

// without returns the JSON patch (RFC 6902) that removes the taints with the key, nil if there is none. The patch fails if another
// client has changed the list meanwhile, so that another taint is at the index.
func without(taints []corev1.Taint, key string) ([]byte, error) {
	var patch []map[string]any
	for i, t := range slices.Backward(taints) {
		if path := fmt.Sprintf("/spec/taints/%d", i); t.Key == key {
			patch = append(patch, map[string]any{"op": "test", "path": path + "/key", "value": key}, map[string]any{"op": "remove", "path": path})
		}
	}
	if patch == nil {
		return nil, nil
	}
	return json.Marshal(patch)
}
