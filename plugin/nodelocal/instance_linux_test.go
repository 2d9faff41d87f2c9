package nodelocal

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"golang.org/x/sys/unix"
)

func announced(t *testing.T, iface string) *instance {
	t.Helper()
	i, err := announce(iface)
	kit.Must(t, err)
	t.Cleanup(i.leave)
	return i
}

func expectOthers(t *testing.T, i *instance, n int, younger bool) {
	t.Helper()
	gotN, gotYounger, err := i.others()
	if err != nil || gotN != n || gotYounger != younger {
		t.Errorf("%d others, younger %t, %v; want %d, %t", gotN, gotYounger, err, n, younger)
	}
}

func TestInstances(t *testing.T) {
	const iface = "test-instances"
	a := announced(t, iface)
	expectOthers(t, a, 0, false)
	b := announced(t, iface)
	announced(t, iface+"2") // of another interface
	expectOthers(t, a, 1, true)
	expectOthers(t, b, 1, false)
	if n, err := Instances(iface); n != 2 || err != nil {
		t.Errorf("%d instances, %v", n, err)
	}
	removed := func() (done bool) {
		if err := ifLast(iface, func() error { done = true; return nil }); err != nil {
			t.Error(err)
		}
		return done
	}
	a.leave()
	if removed() {
		t.Error("the first to leave removed the interface of the other")
	}
	expectOthers(t, b, 0, false)
	b.leave()
	if !removed() {
		t.Error("the last to leave removed nothing")
	}
	if n, err := Instances(iface); n != 0 || err != nil {
		t.Errorf("%d instances, %v", n, err)
	}
}

// TestArrivalDuringRemoval starts an instance while the last one removes everything.
func TestArrivalDuringRemoval(t *testing.T) {
	const iface = "test-removal"
	a := announced(t, iface)
	a.leave()
	arrived := make(chan struct{})
	kit.Must(t, ifLast(iface, func() error {
		go func() {
			defer close(arrived)
			i, err := announce(iface)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(i.leave)
		}()
		select {
		case <-arrived:
			t.Error("the arriving instance did not wait")
		case <-time.After(200 * time.Millisecond):
		}
		return nil
	}))
	select {
	case <-arrived:
	case <-time.After(removalWait):
		t.Error("the arriving instance still waits")
	}
}

// TestLeavingAtOnce has pairs of instances leave at the same time: one of them removes everything.
func TestLeavingAtOnce(t *testing.T) {
	for n := range 50 {
		iface := fmt.Sprintf("test-both%d", n)
		var removed atomic.Int32
		var both sync.WaitGroup
		for range 2 {
			i := announced(t, iface)
			both.Go(func() {
				i.leave()
				if err := ifLast(iface, func() error { removed.Add(1); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if removed.Load() == 0 {
			t.Errorf("pair %d: neither of them removed", n)
		}
	}
}

// TestForeignSockets binds names of ours, and names with line breaks, as another user.
func TestForeignSockets(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	const iface = "test-foreign"
	own := announced(t, iface)
	names := []string{
		instancePrefix + iface + "/99999999999999999999-000001-1",
		instancePrefix + iface + "/" + removalName,
		instancePrefix + iface + "/anything",
		"@x\n\ny", "@" + "\n" + instancePrefix + iface + "/99999999999999999999-000002-1",
	}
	bound := make(chan error)
	ended := make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine, as the other user
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
			bound <- e
			return
		}
		for _, name := range names {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
			if err != nil {
				bound <- err
				return
			}
			defer func() { _ = l.Close() }()
		}
		bound <- nil
		<-ended
	}()
	defer close(ended)
	kit.Must(t, <-bound)
	expectOthers(t, own, 0, false)
	own.leave()
	start := time.Now()
	removed := false
	if err := ifLast(iface, func() error { removed = true; return nil }); err != nil || !removed {
		t.Errorf("removed %t, %v", removed, err)
	}
	announced(t, iface)
	if d := time.Since(start); d >= removalWait {
		t.Errorf("waited %s for the removal lock of another user", d)
	}
}
