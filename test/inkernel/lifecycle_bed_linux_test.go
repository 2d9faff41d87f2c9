package inkernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nearside-dns/nearside/test/daemon"
)

// world is a node with a ledger as its upstream, and pods.
type world struct {
	*node
	ledger *ledger
	pods   []*pod
}

// newWorld makes a node with a number of pods, one half of each shape.
func newWorld(t testing.TB, pods int) *world {
	t.Helper()
	w := &world{node: newNode(t)}
	w.ledger = startLedger(t, w.node)
	for i := range pods {
		w.pods = append(w.pods, w.addPod(t, shapes[i%len(shapes)]))
	}
	return w
}

// devices are the interfaces without those of pods: lo, and the host side of the ledger's link.
const devices = 2

// fallback are the options of nodelocal by which cluster DNS answers while no nodecache has the lease, also after its end.
var fallback = []string{fmt.Sprintf("fallback %v %v", ledger4, ledger6), "keep"}

// exactCache are the arguments of cache without answers that have expired: the ledger may be slow on a busy machine.
const exactCache = "{\n        serve_stale off\n    }"

// configured returns a configuration with answers in the kernel from a server of the ledger.
func (w *world) configured(port uint16) config {
	return config{kernel: "on", cache: exactCache, forward: w.ledger.at(port), nodelocal: fallback}
}

// startLoaded starts a nodecache and a load of some clients in each pod and for each address, and waits until the kernel answers.
func (w *world) startLoaded(t testing.TB, c config, clients int) (*instance, *load) {
	t.Helper()
	i := w.start(t, c)
	i.waitInterfaces(t, "attached", len(w.pods)+devices)
	l := newLoad(t, w.ledger, rule{ports: []int{firstPort}})
	for _, p := range w.pods {
		l.add(p.Namespace, clients, locals...)
	}
	i.waitAnswers(t, 200)
	return i, l
}

// waitAnswers waits until the kernel has answered a number of queries more.
func (i *instance) waitAnswers(t testing.TB, number int) {
	t.Helper()
	before := -1
	i.eventually(t, fmt.Sprintf("%d answers of the kernel", number), func() error {
		now, err := i.kernelAnswers(t)
		if err != nil {
			return err
		}
		if before < 0 || now < before {
			before = now
		}
		if now < before+number {
			return fmt.Errorf("%d, %d at first", now, before)
		}
		return nil
	})
}

// kernelAnswers returns the number of queries that the kernel has answered, an error if no program is loaded.
func (i *instance) kernelAnswers(t testing.TB) (int, error) {
	t.Helper()
	all := i.scrape(t)
	if _, ok := all[answeredTotal]; !ok {
		return 0, errors.New("no program is loaded")
	}
	return int(all.Sum(answeredTotal)), nil
}

// waitLog waits until the output contains a text a number of times.
func (i *instance) waitLog(t testing.TB, text string, times int) {
	t.Helper()
	i.eventually(t, fmt.Sprintf("%q in the log", text), func() error {
		if n := strings.Count(i.Output(), text); n < times {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
}

// acquired waits until the instance itself has the leases: ready waits for those of any instance.
func (i *instance) acquired(t testing.TB) {
	t.Helper()
	for _, a := range i.config.local() {
		i.waitLog(t, fmt.Sprintf("Lease of %v acquired", a), 1)
	}
}

// attachments returns the programs at the ingress of an interface of the node.
func (n *node) attachments(t testing.TB, device string) (ids []ebpf.ProgramID) {
	t.Helper()
	err := n.Do(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		for _, p := range result.Programs {
			ids = append(ids, p.ID)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("programs of %s: %v", device, err)
	}
	return ids
}

// noRefusal fails if an interface has refused the program, such as because of the program of another instance.
func (i *instance) noRefusal(t testing.TB, all daemon.Samples) {
	t.Helper()
	for key, value := range all {
		if strings.HasPrefix(key, interfaces) && !strings.Contains(key, "attached") && value > 0 {
			t.Errorf("%s is %v", key, value)
		}
	}
}
