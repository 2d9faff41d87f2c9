package nodelocal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Instances of nodecache on one node know each other by sockets with names in the network namespace,
// which no file system has to be shared for and which end with their process, however it ends. The
// name has the time of the start, so that all know who is the youngest: that one keeps the interface
// and the rules. The last to leave removes them, under a name that no arriving one passes.
const (
	instancePrefix = "@nearside-nodelocal/"
	removalName    = "removal"
	// removalWait bounds how long an arriving instance waits for a leaving one's removal.
	removalWait = 5 * time.Second
)

// socketList is where the kernel lists the sockets of the thread's network namespace.
const socketList = "/proc/thread-self/net/unix"

// instance is the presence of one instance.
type instance struct {
	iface, name string
	socket      *net.UnixConn
}

var instanceNumber atomic.Uint64

// announce makes a new instance known.
func announce(iface string) (*instance, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	name := fmt.Sprintf("%020d-%06d-%d", now.Nano(), instanceNumber.Add(1), os.Getpid())
	socket, err := bind(iface, name)
	if err != nil {
		return nil, fmt.Errorf("announce this instance: %w", err)
	}
	i := &instance{iface: iface, name: name, socket: socket}
	return i, i.awaitRemoval()
}

func bind(iface, name string) (*net.UnixConn, error) {
	return net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: instancePrefix + iface + "/" + name})
}

// awaitRemoval waits until no leaving instance removes the interface any more.
func (i *instance) awaitRemoval() error {
	for end := time.Now().Add(removalWait); ; time.Sleep(10 * time.Millisecond) {
		names, err := sockets(i.iface)
		if err != nil || !slices.Contains(names, removalName) {
			return err
		}
		if time.Now().After(end) {
			log.Warningf("Another instance has been removing interface %s for %s: going on", i.iface, removalWait)
			return nil
		}
	}
}

// leave takes the instance from the list. It may be called twice.
func (i *instance) leave() {
	_ = i.socket.Close() // a second time it is closed
}

// others returns how many other instances there are, and whether one of them is younger.
func (i *instance) others() (n int, younger bool, err error) {
	names, err := sockets(i.iface)
	for _, name := range names {
		if name == removalName || name == i.name {
			continue
		}
		n++
		younger = younger || name > i.name
	}
	return n, younger, err
}

// Claim lets the caller remove what belongs to the interface: instances that start wait until it is
// closed, for a few seconds at most. ErrClaimed says that somebody else is removing it.
func Claim(iface string) (io.Closer, error) {
	socket, err := bind(iface, removalName)
	if errors.Is(err, unix.EADDRINUSE) {
		err = ErrClaimed
	}
	if err != nil {
		return nil, fmt.Errorf("claim interface %s: %w", iface, err)
	}
	return socket, nil
}

// ErrClaimed says that somebody else is removing the interface.
var ErrClaimed = errors.New("it is being removed by somebody else")

// ifLast calls remove if there is no instance that keeps the interface.
func ifLast(iface string, remove func()) error {
	claim, err := Claim(iface)
	if err != nil {
		return err
	}
	n, err := Instances(iface)
	if err == nil && n == 0 {
		remove()
	}
	return errors.Join(err, claim.Close())
}

// sockets returns the names of an interface's sockets.
func sockets(iface string) (names []string, err error) {
	list, err := os.ReadFile(socketList)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if name, ok := strings.CutPrefix(fields[len(fields)-1], instancePrefix+iface+"/"); ok {
			names = append(names, name)
		}
	}
	return names, nil
}

// Instances returns how many instances of nodecache keep the interface on this node.
func Instances(iface string) (int, error) {
	names, err := sockets(iface)
	return len(slices.DeleteFunc(names, func(name string) bool { return name == removalName })), err
}
