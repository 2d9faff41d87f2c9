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

// Instances of nodecache on one node find each other by abstract sockets in the network namespace, which need no shared
// file system and are closed when their process ends for any reason. The name of a socket contains the time of the
// start: the youngest instance repairs the interface and the rules. The last to leave removes them while it holds a
// socket that is the removal lock, on which starting instances wait. Any process of the network namespace may have such
// sockets, so that only those of root or the own user count.
const (
	instancePrefix = "@nearside-nodelocal/"
	removalName    = "removal"
	// removalWait is the max. wait for the removal lock of another instance.
	removalWait = 5 * time.Second
	// ownerWait is the max. time to read the owner of a socket.
	ownerWait = 100 * time.Millisecond
)

// instanceName matches names of instances: nanoseconds since the node's boot, the number of the instance in its
// process, and the process.
var instanceName = regexp.MustCompile(`^\d{20}-\d{6}-\d+$`)

// socketList lists the Unix sockets of the thread's network namespace.
const socketList = "/proc/thread-self/net/unix"

// instance is one instance, announced to the others by its socket.
type instance struct {
	iface, name string
	socket      io.Closer
}

var instanceNumber atomic.Uint64

// announce announces a new instance, and waits until no other instance holds the removal lock.
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

// bind creates a listening socket with a name. A process that connects to it learns its owner, and nothing else.
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
			log.Warningf("Another instance has been removing interface %s for %s: not waiting any longer", i.iface, removalWait)
			return nil
		}
	}
}

// leave closes the socket. It may be called twice.
func (i *instance) leave() {
	_ = i.socket.Close() // the second time it is closed already
}

// others returns the number of other instances, and whether one of them is younger.
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

// claimTries is the max. number of attempts to get a lock that another user seems to hold.
const claimTries = 5

// Claim acquires the removal lock of the interface: until the caller closes it, starting instances wait, max. a few
// seconds. The error is ErrClaimed if another process holds the lock.
func Claim(iface string) (io.Closer, error) {
	for range claimTries { // a lock that is being closed seems to be another user's
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
	log.Warningf("A process of another user holds the removal lock of interface %s: continuing without the lock", iface)
	return io.NopCloser(nil), nil
}

// ErrClaimed is the error of Claim if another process is removing the interface.
var ErrClaimed = errors.New("another process is removing it")

// ifLast calls remove if no instance uses the interface. If another one is leaving as well, it waits for that one: the
// last of them finds no other.
func ifLast(iface string, remove func() error) error {
	claim, err := Claim(iface)
	for end := time.Now().Add(removalWait); errors.Is(err, ErrClaimed) && time.Now().Before(end); claim, err = Claim(iface) {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	n, err := Instances(iface)
	if err == nil && n == 0 {
		err = remove()
	}
	return errors.Join(err, claim.Close())
}

// flagsField is the field with the flags in a line of /proc/net/unix; listening are the flags of a listening socket
// (__SO_ACCEPTCON of Linux' net.h).
const (
	flagsField = 3
	listening  = "00010000"
)

// instanceSockets returns the names of an interface's trusted sockets.
func instanceSockets(iface string) (names []string, err error) {
	list, err := os.ReadFile(socketList)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	for line := range strings.Lines(string(list)) {
		// A name of another process may contain any bytes: only a part in the form of ours is used.
		fixed, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), instancePrefix+iface+"/")
		if !ok || name != removalName && !instanceName.MatchString(name) || slices.Contains(names, name) {
			continue
		}
		// A connection has the name of its listening socket, and may outlive it.
		if fields := strings.Fields(fixed); len(fields) <= flagsField || fields[flagsField] != listening {
			continue
		}
		if trusted(iface, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// known caches whether the owner of a name is trusted. Names are unique, so that no entry becomes stale.
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
		return false, err // closed meanwhile
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

// Instances returns the number of instances of nodecache that use the interface on this node.
func Instances(iface string) (int, error) {
	names, err := instanceSockets(iface)
	return len(slices.DeleteFunc(names, func(name string) bool { return name == removalName })), err
}
