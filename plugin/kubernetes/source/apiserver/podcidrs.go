package apiserver

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

const (
	// youngFor is the age up to which a node may still get its pod range: the controller manager sets it soon after the
	// registration, other networks never do.
	youngFor = 10 * time.Minute
	// fewNodes is the number of nodes up to which they are read one by one. If there are more, and more than a tenth of all
	// nodes, all nodes are read page by page.
	fewNodes = 10
	// nodesPerPage bounds the memory for whole Nodes, which are about 10 kB each.
	nodesPerPage = 500
	// pageTimeout bounds the request for a page.
	pageTimeout = time.Minute
)

// pace are the intervals for reading nodes and custom resources, so that tests can shorten them.
type pace struct {
	now func() time.Time
	// again is the pause before a young node is read again: its events come in bursts.
	again time.Duration
	// retry and maxRetry bound the pause after a failure, which doubles. The pause for a custom resource grows to check.
	retry, maxRetry time.Duration
	// maxAway and maxRefused limit the pause before a list or a watch is repeated, without an answer of the API server and with one. Jitter
	// up to the same time is added.
	maxAway, maxRefused time.Duration
	// check is the pause between two checks whether a missing custom resource is served, and confirm the pause before the
	// check that deletes its records.
	check, confirm time.Duration
}

// defaultPace returns the intervals of a source. One that reads only pods is on each of thousands of nodes, which try again at the same time.
func defaultPace(o source.Options) pace {
	p := pace{
		now: time.Now, again: 5 * time.Second, retry: time.Second, maxRetry: 5 * time.Minute,
		maxAway: 2 * time.Second, maxRefused: 30 * time.Second, check: 10 * time.Second, confirm: 5 * time.Second,
	}
	if o.PodsOnly {
		p.maxAway = 10 * time.Second
	}
	return p
}

// everyNode is the item of the queue that stands for all nodes.
var everyNode index.Symbol

// podCIDRs adds the ranges of the pods' addresses to the index. They are not in the metadata of Nodes, so whole Nodes are
// read: all of them once, and later each new one. That needs only the permission to list Nodes, and runs beside the watch.
type podCIDRs struct {
	client   rest.Interface
	host     string
	stripper source.Stripper
	index    *index.Index
	queue    workqueue.TypedRateLimitingInterface[index.Symbol] // names of nodes to read
	pace     pace
	once     *atomic.Bool // set when all nodes have been read

	mu       sync.Mutex
	without  map[index.Symbol]nodeWithout     // nodes that were read and lack pod ranges or addresses
	failures map[metav1.StatusReason]struct{} // logged since the last success
}

// nodeWithout is a node that lacked ranges when it was read.
type nodeWithout struct {
	uid     index.UID
	created time.Time
}

func (s *Source) podCIDRs(ix *index.Index) *podCIDRs {
	return &podCIDRs{
		client: s.clients.core, host: s.host, stripper: s.stripper, index: ix,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[index.Symbol](s.pace.retry, s.pace.maxRetry)),
		pace:     s.pace,
		once:     &s.nodesRead,
		without:  map[index.Symbol]nodeWithout{},
		failures: map[metav1.StatusReason]struct{}{},
	}
}

// observe is called after each event of a node.
func (p *podCIDRs) observe(o metav1.Object, _ *index.Node) {
	name := index.NewSymbol(o.GetName())
	switch wants, again := p.wants(name); {
	case again:
		p.queue.AddAfter(name, p.pace.again)
	case wants:
		p.queue.Add(name)
	}
}

// listed is called after each list of all nodes.
func (p *podCIDRs) listed(all []*index.Node) {
	p.mu.Lock()
	maps.DeleteFunc(p.without, func(name index.Symbol, _ nodeWithout) bool { return p.index.Node(name) == nil })
	p.mu.Unlock()
	if !p.once.Load() {
		p.queue.Add(everyNode)
		return
	}
	var names []index.Symbol
	for _, n := range all {
		if wants, _ := p.wants(n.Name); wants {
			names = append(names, n.Name)
		}
	}
	if len(names) > max(fewNodes, len(all)/10) {
		p.queue.Add(everyNode)
		return
	}
	for _, name := range names {
		p.queue.Add(name)
	}
}

// wants reports whether a node must be read, and whether it has been read before.
func (p *podCIDRs) wants(name index.Symbol) (wants, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.index.Node(name)
	if n == nil {
		delete(p.without, name)
		return false, false
	}
	if w, read := p.without[name]; read && w.uid == n.UID {
		young := p.pace.now().Sub(w.created) < youngFor
		return young, young
	}
	return len(n.CIDRs) == 0, false
}

// run reads nodes until ctx ends.
func (p *podCIDRs) run(ctx context.Context) {
	defer context.AfterFunc(ctx, p.queue.ShutDown)()
	for {
		name, ended := p.queue.Get()
		if ended {
			return
		}
		p.next(ctx, name)
		p.queue.Done(name)
	}
}

func (p *podCIDRs) next(ctx context.Context, name index.Symbol) {
	if wants, _ := p.wants(name); !wants && name != everyNode {
		p.queue.Forget(name)
		return
	}
	if err := p.read(ctx, name); err != nil {
		p.failed(ctx, err)
		p.queue.AddRateLimited(name)
		return
	}
	p.queue.Forget(name)
	if name == everyNode {
		p.once.Store(true)
	}
	p.succeeded()
}

// read reads one node, or every node.
func (p *podCIDRs) read(ctx context.Context, name index.Symbol) error {
	o := metav1.ListOptions{Limit: nodesPerPage}
	if name != everyNode {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name.String()).String()
	}
	for {
		page, err := p.page(ctx, o)
		if err != nil {
			return err
		}
		for i := range page.Items {
			p.store(&page.Items[i])
		}
		if page.Continue == "" {
			return nil
		}
		o.Continue = page.Continue
	}
}

func (p *podCIDRs) page(ctx context.Context, o metav1.ListOptions) (*corev1.NodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	page := &corev1.NodeList{}
	err := p.client.Get().Resource(source.Nodes).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(page)
	return page, err
}

// store adds the ranges of a node to the index.
func (p *podCIDRs) store(o *corev1.Node) {
	ranges, whole := source.NodeRanges(o)
	n := p.stripper.Node(nil, o.Name, string(o.UID), ranges...)
	if len(n.CIDRs) > 0 {
		p.index.SetNodeCIDRs(n.Name, n.UID, n.CIDRs)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if whole || p.index.Node(n.Name) == nil {
		delete(p.without, n.Name)
	} else {
		p.without[n.Name] = nodeWithout{uid: n.UID, created: o.CreationTimestamp.Time}
	}
}

// failed logs each kind of failure once, until a read succeeds.
func (p *podCIDRs) failed(ctx context.Context, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	kind := apierrors.ReasonForError(err)
	if _, ok := p.failures[kind]; ok || ctx.Err() != nil {
		return
	}
	p.failures[kind] = struct{}{}
	log.Warningf("%s: the ranges of pod addresses cannot be read from the API server %s: %v; callers are not identified by them; retrying",
		source.Nodes, p.host, err)
}

// succeeded logs the end of failures.
func (p *podCIDRs) succeeded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.failures) > 0 {
		clear(p.failures)
		log.Infof("%s: the ranges of pod addresses are read from the API server %s again", source.Nodes, p.host)
	}
}
