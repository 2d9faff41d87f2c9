package kernel

import (
	"errors"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of the filter among those of an interface: the kernel calls the filter with the lowest number first. A filter that
// requests no priority gets a number below the others.
const (
	filterPriority = 5300
	firstPriority  = 1
)

// attachFilter adds the filter to the qdisc of an interface, and reports whether it has created the qdisc.
func (h *hook) attachFilter(l netlink.Link, present []Program) (created bool, err error) {
	for _, p := range present {
		if p.filter != nil && p.ID == h.filter {
			return false, nil
		}
	}
	// The error is EEXIST for a qdisc of kind ingress as well, which has the same filters.
	err = h.kernel.QdiscAdd(qdisc(l))
	created = err == nil
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, err
	}
	if err = h.kernel.FilterAdd(h.newFilter(l)); err != nil && created {
		err = errors.Join(err, h.removeQdisc(l))
	}
	return created, err
}

func qdisc(l netlink.Link) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT},
		QdiscType:  "clsact",
	}
}

// newFilter returns this process's filter. The ID of its program is its handle, by which it differs from the filters of other
// instances.
func (h *hook) newFilter(l netlink.Link) *netlink.BpfFilter {
	priority := uint16(filterPriority)
	if h.first {
		priority = firstPriority
	}
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: uint32(h.filter),
			Priority: priority, Protocol: unix.ETH_P_ALL,
		},
		Fd: h.programs.Filter.FD(), Name: filterName, DirectAction: true,
	}
}

// removeLeftovers removes the filters of instances that have ended.
func (h *hook) removeLeftovers(l netlink.Link, present []Program) (err error) {
	for _, p := range present {
		if p.leftover() {
			err = errors.Join(err, h.removeFilter(p.filter))
		}
	}
	return err
}

// removeFilter removes a filter, which another process may have removed already.
func (h *hook) removeFilter(f *netlink.BpfFilter) error {
	removed := *f
	removed.Fd = -1
	err := h.kernel.FilterDel(&removed)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // EINVAL: the qdisc is missing
		return nil
	}
	return err
}

// detachFilter removes the filter, and the qdisc if that was created for the filter and has no other filters.
func (h *hook) detachFilter(a *attachment) error {
	if err := h.removeFilter(h.newFilter(a.interf)); err != nil || !a.created {
		return err
	}
	return h.removeQdisc(a.interf)
}

// removeQdisc removes the qdisc if it has no filters.
func (h *hook) removeQdisc(l netlink.Link) error {
	filters, err := h.filters(l)
	if err != nil || len(filters) > 0 {
		return err
	}
	err = h.kernel.QdiscDel(qdisc(l))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}
