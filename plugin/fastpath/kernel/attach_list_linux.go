package kernel

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Names of the programs of answer.c.
const (
	answerName = "nearside_answer"
	filterName = "nearside_filter"
)

// Kinds of interfaces whose peer may be a pod's.
const (
	kindVeth   = "veth"
	kindNetkit = "netkit"
)

// Program is a BPF program, or a packet filter without one, at the ingress or egress of an interface.
type Program struct {
	Place string         // such as "tcx ingress"
	ID    ebpf.ProgramID // 0 for a filter without a program
	// Name is that of the program or of the filter. It is "" where the kernel does not permit reading it: for programs that
	// other processes have loaded, without CAP_SYS_ADMIN.
	Name string
	// Own is true for a program of nearside, of this process or another one. A filter of nearside whose process has ended is
	// not.
	Own bool

	filter *netlink.BpfFilter // nil except for a filter with a program
}

// String returns the program in a few words, such as "program cil_from_container (tcx ingress)".
func (p Program) String() string {
	switch {
	case p.ID == 0:
		return fmt.Sprintf("a filter of kind %s (%s)", p.Name, p.Place)
	case p.Name == "":
		return fmt.Sprintf("program %d (%s)", p.ID, p.Place)
	}
	return fmt.Sprintf("program %s (%s)", p.Name, p.Place)
}

// leftover reports whether the program is a filter of nearside whose process has ended.
func (p Program) leftover() bool { return p.filter != nil && p.Name == filterName && !p.Own }

// foreign reports whether the program is not one of nearside.
func (p Program) foreign() bool { return !p.Own && !p.leftover() && p.Name != answerName }

// lister lists the programs of interfaces.
type lister struct {
	tcx    bool // the kernel has tcx
	kernel *netlink.Handle
	known  map[ebpf.ProgramID]identity
	// were has the programs that have once been identified as those of nearside: one for each instance. While a process ends, its
	// program is still listed, without a name and an announcement. The kernel does not use an ID again before 2,147,483,647 others.
	were map[ebpf.ProgramID]bool
}

// identity is a program's name and whether it is of nearside.
type identity struct {
	name string
	own  bool
}

func openLister() (l lister, err error) {
	if l.tcx, err = hasTCX(); err != nil {
		return l, err
	}
	if l.kernel, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return l, &KernelError{"open a netlink socket", err}
	}
	if err := l.kernel.SetSocketTimeout(kernelWait); err != nil {
		return l, &KernelError{"open a netlink socket", err}
	}
	l.forget()
	l.were = map[ebpf.ProgramID]bool{}
	return l, nil
}

func (l *lister) close() {
	if l.kernel != nil {
		l.kernel.Close()
	}
}

// forget removes the identities of programs, which may have ended.
func (l *lister) forget() { l.known = map[ebpf.ProgramID]identity{} }

// hasTCX reports whether the kernel has tcx. A kernel without it refuses the attach type before it looks for the interface.
func hasTCX() (bool, error) {
	const loopback = 1 // the index, in each network namespace
	_, err := query(loopback, ebpf.AttachTCXIngress)
	switch {
	case err == nil || gone(err):
		return true, nil
	case errors.Is(err, unix.EINVAL):
		return false, nil
	}
	return false, &KernelError{"probe tcx", err}
}

func query(index int, at ebpf.AttachType) ([]link.AttachedProgram, error) {
	result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
	if err != nil {
		return nil, err
	}
	return result.Programs, nil
}

// again repeats a listing that a concurrent change has made incomplete, as happens on a node where pods start and end.
func again[T any](list func() ([]T, error)) (all []T, err error) {
	const tries = 20
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// links returns the interfaces of the node.
func (l *lister) links() ([]netlink.Link, error) {
	all, err := again(l.kernel.LinkList)
	if err != nil {
		return nil, &KernelError{"list interfaces", err}
	}
	return all, nil
}

// uplinks returns the indices of the interfaces of the default routes. On a node that is itself a container, these are veths, too,
// whose peers are not in pods.
func (l *lister) uplinks() (map[int]bool, error) {
	all := map[int]bool{}
	for _, a := range [...]net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")} { // of documentation, RFC 5737 and RFC 3849
		routes, err := l.kernel.RouteGetWithOptions(a, &netlink.RouteGetOptions{FIBMatch: true})
		if err != nil && !noRoute(err) {
			return nil, &KernelError{"read the default routes", err}
		}
		for _, r := range routes {
			all[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				all[hop.LinkIndex] = true
			}
		}
	}
	delete(all, 0) // of a route with several hops
	return all, nil
}

// noRoute reports whether an error is that of a node without a default route, or without IPv6.
func noRoute(err error) bool {
	for _, e := range [...]unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// list returns the programs of an interface. Without withFilters it returns only the programs of tcx and netkit, whose changes the
// kernel does not report.
func (l *lister) list(interf netlink.Link, withFilters bool) (all []Program, err error) {
	queried, err := l.queried(interf)
	if err == nil && withFilters {
		all = xdp(interf)
		var filters []Program
		filters, err = l.filters(interf)
		all = append(all, filters...)
	}
	if err != nil {
		return nil, &KernelError{"list programs of interface " + interf.Attrs().Name, err}
	}
	all = append(all, queried...)
	for i := range all {
		if p := &all[i]; p.ID != 0 {
			id := l.identify(p.ID)
			p.Own = id.own
			if p.Name == "" {
				p.Name = id.name
			}
		}
	}
	return all, nil
}

// queried returns the programs of tcx and netkit.
func (l *lister) queried(interf netlink.Link) (all []Program, err error) {
	places := map[ebpf.AttachType]string{}
	if l.tcx {
		places[ebpf.AttachTCXIngress], places[ebpf.AttachTCXEgress] = "tcx ingress", "tcx egress"
	}
	if interf.Type() == kindNetkit {
		places[ebpf.AttachNetkitPrimary], places[ebpf.AttachNetkitPeer] = "netkit primary", "netkit peer"
	}
	for at, place := range places {
		found, err := query(interf.Attrs().Index, at)
		if err != nil {
			return nil, err
		}
		for _, p := range found {
			all = append(all, Program{Place: place, ID: p.ID})
		}
	}
	return all, nil
}

// xdp returns the XDP program of an interface.
func xdp(interf netlink.Link) []Program {
	x := interf.Attrs().Xdp
	if x == nil || !x.Attached {
		return nil
	}
	return []Program{{Place: "XDP", ID: ebpf.ProgramID(x.ProgId)}}
}

// filterParents are the parents of filters in a qdisc clsact or ingress.
var filterParents = []struct {
	place  string
	handle uint32
}{
	{"clsact ingress", netlink.HANDLE_MIN_INGRESS},
	{"clsact egress", netlink.HANDLE_MIN_EGRESS},
}

// filters returns the filters in the qdisc clsact or ingress of an interface. In a qdisc ingress, both parents list the same filters.
func (l *lister) filters(interf netlink.Link) (all []Program, err error) {
	for _, parent := range filterParents {
		found, err := again(func() ([]netlink.Filter, error) { return l.kernel.FilterList(interf, parent.handle) })
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			if slices.ContainsFunc(all, func(p Program) bool { return sameFilter(p.filter, f) }) {
				continue
			}
			p := Program{Place: parent.place, Name: f.Type()}
			if b, ok := f.(*netlink.BpfFilter); ok && b.Id != 0 {
				p.ID, p.Name, p.filter = ebpf.ProgramID(b.Id), b.Name, b
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// sameFilter reports whether two filters with programs are equal, except in their parents.
func sameFilter(a *netlink.BpfFilter, filter netlink.Filter) bool {
	b, ok := filter.(*netlink.BpfFilter)
	return ok && a != nil && a.Id == b.Id && a.Handle == b.Handle && a.Priority == b.Priority && a.Protocol == b.Protocol
}

// identify returns the identity of a program.
func (l *lister) identify(id ebpf.ProgramID) identity {
	if known, ok := l.known[id]; ok {
		return known
	}
	i := identity{name: nameOf(id)}
	if i.own = i.name == answerName || isAnnounced(id); i.own {
		l.were[id] = true
	}
	if l.were[id] && i.name == "" {
		i.name = answerName // a listed filter has its own name
	}
	l.known[id] = i
	return i
}

// nameOf returns the name of a program, "" if the kernel does not permit reading it.
func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer func() { _ = p.Close() }() // a reference
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}
