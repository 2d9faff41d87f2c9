package kernel

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kernelWait is the max. wait for one reply of the kernel.
const kernelWait = 5 * time.Second

// KernelError is an operation that the kernel has refused.
type KernelError struct {
	Operation string // such as "attach nearside_answer to interface veth1"
	Err       error
}

func (e *KernelError) Error() string { return e.Operation + ": " + e.Err.Error() }

func (e *KernelError) Unwrap() error { return e.Err }

// gone reports whether an operation failed because the interface has been removed.
func gone(err error) bool { return errors.Is(err, unix.ENODEV) }

// Programs are the loaded programs of answer.c, and the map by which Filter calls Answer. The caller closes them after
// Interfaces.
type Programs struct {
	Answer *ebpf.Program // nearside_answer
	Filter *ebpf.Program // nearside_filter, for kernels without tcx (Linux before 6.6)
	Tail   *ebpf.Map     // the map "program" of Filter
}

// hook attaches the program to interfaces. It is used by one goroutine.
type hook struct {
	lister
	programs       Programs
	answer, filter ebpf.ProgramID
	clsact         bool // by filters of a clsact qdisc, not by links of tcx
	first          bool // before the programs of others
	announced      []announcement
}

// attachment is the program at an interface.
type attachment struct {
	interf  netlink.Link
	link    link.Link // with tcx; the filter has no link
	created bool      // this process has created the filter's qdisc
}

// openHook prepares attaching. With first the program is to run before those of others; with clsact tcx is not used.
func openHook(p Programs, first, clsact bool) (h *hook, err error) {
	h = &hook{programs: p, clsact: clsact, first: first}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if h.lister, err = openLister(); err != nil {
		return h, err
	}
	h.clsact = h.clsact || !h.tcx
	if h.answer, err = programID(p.Answer); err != nil {
		return h, err
	}
	if h.filter, err = programID(p.Filter); err != nil {
		return h, err
	}
	// Another instance may examine an interface at any time from the first attachment on.
	for _, id := range []ebpf.ProgramID{h.answer, h.filter} {
		a, err := announce(id)
		if err != nil {
			return h, err
		}
		h.announced = append(h.announced, a)
	}
	if h.clsact {
		if err := p.Tail.Put(uint32(0), p.Answer); err != nil {
			return h, &KernelError{"connect " + filterName + " with " + answerName, err}
		}
	}
	return h, nil
}

// close ends attaching. It does not detach.
func (h *hook) close() (err error) {
	for _, a := range h.announced {
		err = errors.Join(err, a.Close())
	}
	h.lister.close()
	return err
}

func programID(p *ebpf.Program) (ebpf.ProgramID, error) {
	info, err := p.Info()
	if err != nil {
		return 0, &KernelError{fmt.Sprintf("read the ID of %v", p), err}
	}
	id, ok := info.ID()
	if !ok {
		return 0, &KernelError{fmt.Sprintf("read the ID of %v", p), errors.ErrUnsupported}
	}
	return id, nil
}

// mode returns how programs are attached.
func (h *hook) mode() string {
	if h.clsact {
		return "clsact"
	}
	return "tcx"
}

// own returns the ID of the program that the hook attaches to interfaces.
func (h *hook) own() ebpf.ProgramID {
	if h.clsact {
		return h.filter
	}
	return h.answer
}

// attach attaches the program at the ingress of an interface, given the programs of the interface. Filters of instances that have
// ended are removed. The attachment ends with the process: the kernel closes a link, and empties the map of a filter.
func (h *hook) attach(l netlink.Link, present []Program) (*attachment, error) {
	a := &attachment{interf: l}
	err := h.removeLeftovers(l, present)
	switch {
	case err != nil:
	case h.clsact:
		a.created, err = h.attachFilter(l, present)
	default:
		a.link, err = h.attachLink(l)
	}
	if err != nil {
		return nil, &KernelError{fmt.Sprintf("attach %s to interface %s", answerName, l.Attrs().Name), err}
	}
	return a, nil
}

func (h *hook) attachLink(l netlink.Link) (link.Link, error) {
	o := link.TCXOptions{Interface: l.Attrs().Index, Program: h.programs.Answer, Attach: ebpf.AttachTCXIngress}
	if h.first {
		o.Anchor = link.Head()
	}
	return link.AttachTCX(o)
}

// detach ends an attachment. It is no error if the interface has been removed.
func (h *hook) detach(a *attachment) error {
	var err error
	if a.link != nil {
		// Without Detach, the kernel may detach a closed link later.
		if err = a.link.Detach(); gone(err) {
			err = nil
		}
		err = errors.Join(err, a.link.Close())
	} else {
		err = h.detachFilter(a)
	}
	if err == nil || gone(err) {
		return nil
	}
	return &KernelError{fmt.Sprintf("detach %s from interface %s", answerName, a.interf.Attrs().Name), err}
}
