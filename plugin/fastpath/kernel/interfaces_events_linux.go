package kernel

import (
	"encoding/binary"
	"errors"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// eventBuffer is the size in bytes of the socket's receive buffer: enough for the start of some hundred pods at once.
const eventBuffer = 1 << 20

// event is a change of an interface.
type event struct {
	index   int
	link    netlink.Link // nil if only the interface's filters have changed
	removed bool
	// err is why events are missing before this one. All interfaces must be listed again.
	err error
}

// subscription is the kernel's notifications of changed interfaces, qdiscs and filters.
type subscription struct {
	events chan event // closed when the subscription ends
	socket *mdlayher.Conn
	stop   chan struct{}
}

// subscribe starts a subscription with a receive buffer of a size in bytes. Interfaces must be listed after it.
func subscribe(buffer int) (*subscription, error) {
	const groups = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_TC-1)
	socket, err := mdlayher.Dial(unix.NETLINK_ROUTE, &mdlayher.Config{Groups: groups})
	if err != nil {
		return nil, &KernelError{"watch interfaces", err}
	}
	if err := socket.SetReadBuffer(buffer); err != nil {
		return nil, &KernelError{"watch interfaces", errors.Join(err, socket.Close())}
	}
	s := &subscription{events: make(chan event), socket: socket, stop: make(chan struct{})}
	go s.receive()
	return s, nil
}

// close ends the subscription.
func (s *subscription) close() error {
	close(s.stop)
	err := s.socket.Close()
	for range s.events { // until it is closed
	}
	return err
}

// receive sends events until the socket fails or is closed.
func (s *subscription) receive() {
	defer close(s.events)
	for {
		messages, err := s.socket.Receive()
		if err != nil {
			s.send(event{err: err})
			if errors.Is(err, unix.ENOBUFS) { // messages were lost: later ones are received
				continue
			}
			return
		}
		for _, m := range messages {
			if e, ok := newEvent(m); ok && !s.send(e) {
				return
			}
		}
	}
}

func (s *subscription) send(e event) bool {
	select {
	case <-s.stop:
		return false
	case s.events <- e:
		return true
	}
}

// newEvent returns the event of a notification.
func newEvent(m mdlayher.Message) (e event, ok bool) {
	const (
		header = unix.SizeofIfInfomsg
		tcmsg  = 20 // struct tcmsg
	)
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		// Bridges report their ports by messages of family AF_BRIDGE, without the attributes of the interface.
		if len(m.Data) < header || m.Data[0] != unix.AF_UNSPEC {
			return e, false
		}
		l, err := netlink.LinkDeserialize(nil, m.Data)
		if err != nil {
			return event{err: err}, true
		}
		return event{index: l.Attrs().Index, link: l, removed: m.Header.Type == unix.RTM_DELLINK}, true
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_NEWQDISC, unix.RTM_DELQDISC:
		if len(m.Data) < tcmsg {
			return e, false
		}
		return event{index: int(int32(binary.NativeEndian.Uint32(m.Data[4:])))}, true
	}
	return e, false
}
