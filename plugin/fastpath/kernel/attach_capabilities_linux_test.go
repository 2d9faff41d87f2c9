//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
)

// capabilities are those of nodecache with kernel answers.
var capabilities = []uintptr{unix.CAP_BPF, unix.CAP_NET_ADMIN}

// stub returns programs that pass every packet, with the names of those of answer.c.
func stub() *ebpf.CollectionSpec {
	const pass = -1
	program := func(name string) *ebpf.ProgramSpec {
		return &ebpf.ProgramSpec{
			Name: name, Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
		}
	}
	return &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{answerName: program(answerName), filterName: program(filterName)},
		Maps: map[string]*ebpf.MapSpec{answerMapProgram: {
			Name: answerMapProgram, Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		}},
	}
}

// TestCapabilities attaches in a process of root with CAP_BPF and CAP_NET_ADMIN only, beside another instance.
func TestCapabilities(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	h.addPod("pod0", ns)
	p := h.load()
	for _, mode := range modes(t) {
		for name, stub := range map[string]string{"answer.c": "0", "other programs": "1"} {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				h := newHost(t)
				o := h.quick()
				o.clsact = mode.clsact
				h.follow(p, o)
				c, err := limited(func() (*child, error) { return h.start(childMode+"="+mode.name, childStub+"="+stub, childLimited+"=1") })
				h.must(err)
				if !strings.Contains(c.state, "{Attached:2 Refused:map[] Policy: ") {
					t.Errorf("%s, want 2 attached", c.state)
				}
				if got := h.ids("pod0"); len(got) != 2 {
					t.Errorf("programs %v, want one of each instance", got)
				}
				h.must(c.Process.Kill())
				_ = c.Wait() // the error is the signal
				if !mode.clsact {
					h.eventually("the instance's program is gone", func() bool { return h.has("pod0") })
				}
			})
		}
	}
	for _, o := range h.obstacles() {
		t.Run("beside "+o.name, func(t *testing.T) {
			h := newHost(t)
			remove := o.add(h, h.link("pod0"))
			c, err := limited(func() (*child, error) { return h.start(childMode+"=clsact", childStub+"=1", childLimited+"=1") })
			h.must(err)
			if !strings.Contains(c.state, "{Attached:1 Refused:map[program:1] Policy: ") {
				t.Errorf("%s, want 1 attached and 1 refused", c.state)
			}
			h.must(c.Process.Kill())
			_ = c.Wait() // the error is the signal
			h.must(remove())
		})
	}
}

// limited calls a function that starts a process. It has the capabilities above only, since those of a program that root starts
// are bounded by the thread's bounding set.
func limited(start func() (*child, error)) (c *child, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
			if !slices.Contains(capabilities, c) {
				_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // EINVAL: the kernel does not have it
			}
		}
		c, err = start()
	}()
	<-done
	return c, err
}

// verifyLimited verifies in the second process that it has only these capabilities, with which the kernel does not permit reading
// the name of a program by its ID.
func (h *host) verifyLimited() {
	h.Helper()
	var want uint64
	for _, c := range capabilities {
		want |= 1 << c
	}
	status, err := os.ReadFile("/proc/self/status")
	h.must(err)
	for line := range strings.Lines(string(status)) {
		if fields := strings.Fields(line); fields[0] == "CapEff:" && fields[1] != fmt.Sprintf("%016x", want) {
			h.Fatalf("%s, want %x", line, want)
		}
	}
	id, err := programID(h.loadSpec(stub()).Answer)
	h.must(err)
	if _, err := ebpf.NewProgramFromID(id); !errors.Is(err, unix.EPERM) {
		h.Fatalf("a program is opened by its ID with the error %v, want EPERM", err)
	}
}
