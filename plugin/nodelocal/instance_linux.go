package nodelocal

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Instances of nodecache on one node know each other by sockets with names in the network namespace,
// which no file system has to be shared for and which end with their process, however it ends. The
// name has the time of the start, so that all know who is the youngest: that one keeps the interface
// and the rules. The last to leave removes them, under a name that no arriving one passes. Since any
// process of the network namespace may have such names, only those of root or the own user count.
const (
	instancePrefix = "@nearside-nodelocal/"
	removalName    = "removal"
	// removalWait bounds how long an instance waits for another one's removal.
	removalWait = 5 * time.Second
	// ownerWait bounds the look at a socket's owner.
	ownerWait = 100 * time.Millisecond
)

// instanceName is what names of instances look like: nanoseconds since the node's boot, the number of
// the instance in its process, and the process.
var instanceName = regexp.MustCompile(`^\d{20}-\d{6}-\d+$`)

// socketList is where the kernel lists the sockets of the thread's network namespace.
const socketList = "/proc/thread-self/net/unix"

// instance is the presence of one instance.
type instance struct {
	iface, name string
	socket      io.Closer
}

var instanceNumber atomic.Uint64

// announce makes a new instance known, and waits until no leaving one removes the interface any more.
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
	if err := i.awaitRemoval(); err != nil {
		i.leave()
		return nil, err
	}
	return i, nil
}

// bind makes a socket with a name. Who connects to it learns whose it is, and nothing else.
func bind(iface, name string) (io.Closer, error) {
	l, err := net.ListenUnix("unix", address(iface, name))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // closed
			}
			_ = c.Close()
		}
	}()
	return l, nil
}

func address(iface, name string) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: instancePrefix + iface + "/" + name}
}

func (i *instance) awaitRemoval() error {
	for end := time.Now().Add(removalWait); ; time.Sleep(10 * time.Millisecond) {
		names, err := instanceSockets(i.iface)
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
	names, err := instanceSockets(i.iface)
	for _, name := range names {
		if name == removalName || name == i.name {
			continue
		}
		n++
		younger = younger || name > i.name
	}
	return n, younger, err
}

// claimTries is how often a name is asked for that a stranger seems to have.
const claimTries = 5

// Claim lets the caller remove what belongs to the interface: instances that start wait until it is
// closed, for a few seconds at most. ErrClaimed says that somebody else is removing it.
func Claim(iface string) (io.Closer, error) {
	for range claimTries { // who has the name may be about to leave it, which looks like a stranger
		socket, err := bind(iface, removalName)
		switch {
		case err == nil:
			return socket, nil
		case !errors.Is(err, unix.EADDRINUSE):
			return nil, fmt.Errorf("claim interface %s: %w", iface, err)
		case trusted(iface, removalName):
			return nil, fmt.Errorf("claim interface %s: %w", iface, ErrClaimed)
		}
		time.Sleep(10 * time.Millisecond)
	}
	log.Warningf("A process of another user has the name of removing interface %s: going on without it", iface)
	return io.NopCloser(nil), nil
}

// ErrClaimed says that somebody else is removing the interface.
var ErrClaimed = errors.New("it is being removed by somebody else")

// ifLast calls remove if there is no instance that keeps the interface. If another one is leaving as
// well, it waits for that one: whoever comes last sees nobody.
func ifLast(iface string, remove func()) error {
	claim, err := Claim(iface)
	for end := time.Now().Add(removalWait); errors.Is(err, ErrClaimed) && time.Now().Before(end); claim, err = Claim(iface) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	n, err := Instances(iface)
	if err == nil && n == 0 {
		remove()
	}
	return errors.Join(err, claim.Close())
}

// What /proc/net/unix says of a socket that listens, and where (__SO_ACCEPTCON of Linux' net.h).
const (
	flagsField = 3
	listens    = "00010000"
)

// instanceSockets returns the names of an interface's sockets that count.
func instanceSockets(iface string) (names []string, err error) {
	list, err := os.ReadFile(socketList)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		// A name may hold anything: only the part that looks like ours is taken.
		facts, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), instancePrefix+iface+"/")
		if !ok || name != removalName && !instanceName.MatchString(name) || slices.Contains(names, name) {
			continue
		}
		// A connection has the name of its listener, and may be there when that is gone.
		if fields := strings.Fields(facts); len(fields) <= flagsField || fields[flagsField] != listens {
			continue
		}
		if trusted(iface, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// known are the names of instances whose owner has been looked at: such a name is never used again.
var known sync.Map

// trusted returns whether a socket belongs to root or the own user.
func trusted(iface, name string) bool {
	key := iface + "/" + name
	if ok, found := known.Load(key); found {
		return ok.(bool)
	}
	ok, err := ownerTrusted(address(iface, name))
	if err == nil && name != removalName {
		known.Store(key, ok)
	}
	return err == nil && ok
}

func ownerTrusted(a *net.UnixAddr) (ok bool, err error) {
	c, err := net.DialTimeout("unix", a.Name, ownerWait)
	if err != nil {
		return false, err // gone
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false, err
	}
	var owner *unix.Ucred
	if e := raw.Control(func(fd uintptr) {
		owner, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); e != nil || err != nil {
		return false, errors.Join(e, err)
	}
	return owner.Uid == 0 || int(owner.Uid) == os.Geteuid(), nil
}

// Instances returns how many instances of nodecache keep the interface on this node.
func Instances(iface string) (int, error) {
	names, err := instanceSockets(iface)
	return len(slices.DeleteFunc(names, func(name string) bool { return name == removalName })), err
}
