//go:build amd64 || arm64

package fastpath

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/leases"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// kernelBed has a kernelAnswers with listeners, in a network namespace.
type kernelBed struct {
	*testing.T
	*kernelAnswers
}

func newKernelBed(t *testing.T) *kernelBed {
	b := &kernelBed{t, newKernelAnswers()}
	t.Cleanup(func() { b.kernelAnswers.shut() })
	return b
}

// listen serves an address, the i-th, with an option kernel.
func (b *kernelBed) listen(l *listener, i int, kernel, forced bool) *listener {
	b.Helper()
	if l == nil {
		l = &listener{address: fmt.Sprintf("dns://169.254.20.%d:%d", i, 5300+i)}
	}
	blk := &block.Block{Kernel: kernel, Keyspace: store.Shared.NewKeyspace()}
	l.server.Store(&server{kernelForced: forced, blocks: map[string]*servedBlock{".": {Block: blk}}})
	b.serve(l)
	return l
}

// TestInKernel has server blocks with option kernel: the kernel has no answers of those without a fast path, nor of those with plugin
// bufsize, since the program compares the length of an answer with the size of the client's query.
func TestInKernel(t *testing.T) {
	for _, tc := range []struct {
		name  string
		block servedBlock
		want  bool
	}{
		{"on", servedBlock{Block: &block.Block{Kernel: true}}, true},
		{"off", servedBlock{Block: &block.Block{}}, false},
		{"without a fast path", servedBlock{Block: &block.Block{Kernel: true}, Eligibility: block.Eligibility{Prevented: "a reason"}}, false},
		{"bufsize", servedBlock{Block: &block.Block{Kernel: true}, Eligibility: block.Eligibility{BufSize: 4096}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.block.Keyspace = store.Shared.NewKeyspace()
			if got := tc.block.route("", ".").kernel; got != tc.want {
				t.Errorf("route: %t, want %t", got, tc.want)
			}
			if got := (&server{blocks: map[string]*servedBlock{".": &tc.block}}).wantsKernel(); got != tc.want {
				t.Errorf("server: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestKernelReload changes the option of listeners, closes some, and opens others.
func TestKernelReload(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	b := newKernelBed(t)
	prevented := b.listen(nil, 0, true, false)
	prevented.server.Load().blocks["."].Prevented = "a plugin has to see every query"
	if b.serve(prevented); prevented.kernel.Load() != nil {
		t.Error("a server block without a fast path has answers in the kernel")
	}
	b.remove([]*listener{prevented})
	one, two := b.listen(nil, 1, true, false), b.listen(nil, 2, true, false)
	table, interfaces := b.table, b.interfaces
	if table == nil || one.kernel.Load() == nil || two.kernel.Load() == nil {
		t.Fatal("no answers in the kernel")
	}
	epoch := one.kernel.Load().epoch
	if b.listen(one, 1, true, false); one.kernel.Load().epoch == epoch || b.table != table || b.interfaces != interfaces {
		t.Error("after the same again: the same epoch, or another table")
	}
	if b.listen(two, 2, false, false); two.kernel.Load() != nil || one.kernel.Load() == nil {
		t.Error("off for one listener")
	}
	b.listen(one, 1, true, true)
	if b.interfaces == interfaces || b.table != table || one.kernel.Load().interfaces != b.interfaces {
		t.Error("forced: the interfaces are those without force, or another table")
	}
	for i := range 100 { // more addresses and ports over time than the program can have
		l := b.listen(nil, 10+i, true, true)
		if l.kernel.Load() == nil {
			t.Fatalf("address %d has no answers in the kernel", i)
		}
		b.remove([]*listener{l})
	}
	// The next configuration's listener of an address is there before the earlier one closes.
	again := b.listen(&listener{address: one.address}, 1, true, true)
	b.remove([]*listener{one})
	address, _ := ownAddress(again.address)
	b.setLease(address, time.Now().Add(time.Hour))
	if k := again.kernel.Load(); k == nil || !k.table.Leased(k.number) {
		t.Error("the next listener of the address has no answers")
	}
	b.remove([]*listener{again})
	if b.table != nil || again.kernel.Load() != nil {
		t.Error("the program remains without a listener")
	}
}

// TestExitDetachesLater ends the answers at the end of the process: links remain, since each would take a grace period of RCU before
// nodelocal can remove its rules.
func TestExitDetachesLater(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	b := newKernelBed(t)
	l := b.listen(nil, 1, true, false)
	interfaces := b.interfaces
	kit.Eventually(t, "the program is attached to lo", interfaces.Attached)
	if mode := interfaces.State().Mode; mode != "tcx" {
		t.Skipf("the program is attached by %s, and its filters must be removed", mode)
	}
	b.exit()
	programs, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(programs.Programs); n != 1 {
		t.Errorf("lo has %d programs after the last answer, want 1, which the kernel detaches at the end of the process", n)
	}
	if l.kernel.Load() != nil || b.table != nil {
		t.Error("the kernel may still answer")
	}
}

// TestKernelFails has a reload that fails: the answers end, leases may be renewed, and the next reload succeeds.
func TestKernelFails(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	b := newKernelBed(t)
	l := b.listen(nil, 1, true, false)
	address, _ := ownAddress(l.address)
	var limit unix.Rlimit
	kit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = uint64(len(open)) - 4
	kit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
	b.listen(l, 1, true, true)
	kit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	loaded := func() any {
		if state := kernelMetrics.state.Load(); state != nil {
			return *state
		}
		return nil
	}
	if b.table != nil || l.kernel.Load() != nil || kernelMetrics.sources.Load() != nil || loaded() != 0.0 {
		t.Errorf("something of the program remains, or the metric is not 0: %v", loaded())
	}
	if b.remove(nil); loaded() != 0.0 {
		t.Errorf("at the end of the reload the metric is %v", loaded())
	}
	leases.Process.Renew(address, time.Now().Add(time.Second))
	leases.Process.Release(address)
	if b.listen(l, 1, true, true); l.kernel.Load() == nil {
		t.Error("no answers after the next reload")
	}
	if loaded() != 1.0 {
		t.Errorf("loaded again, and the metric is %v", loaded())
	}
	b.listen(l, 1, false, false)
	if b.remove(nil); loaded() != nil || b.table != nil {
		t.Errorf("without the option, the metric is %v", loaded())
	}
}

// switchingSearches has one list at the first call of ListOf, and another one from the second call on.
type switchingSearches struct{ calls int }

func (s *switchingSearches) Search(netip.Addr, []byte) block.Search { return block.Search{} }

func (s *switchingSearches) ListOf(netip.Addr) uint32 {
	s.calls++
	return uint32(min(s.calls, 2)) // #nosec G115 -- small
}

// TestListFor has search lists that change between the look-up of an entry and its offer.
func TestListFor(t *testing.T) {
	client := netip.MustParseAddr("10.244.1.2")
	if _, ok := listFor(&switchingSearches{}, client, nil, &store.Entry{}); ok {
		t.Error("a list that has changed is accepted")
	}
	if list, ok := listFor(&switchingSearches{calls: 2}, client, nil, &store.Entry{}); !ok || list != 2 {
		t.Errorf("list %d, %t", list, ok)
	}
}
