package nodelocal

import (
	"testing"
	"time"
)

func announced(t *testing.T, iface string) *instance {
	t.Helper()
	i, err := announce(iface)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := ifLast(iface, func() { done = true }); err != nil {
			t.Error(err)
		}
		return done
	}
	a.leave()
	if removed() {
		t.Error("the first to leave removed what the other needs")
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
	if err := ifLast(iface, func() {
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
	}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-arrived:
	case <-time.After(removalWait):
		t.Error("the arriving instance still waits")
	}
}
