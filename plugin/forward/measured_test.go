package forward

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

const (
	// watchEvery is the time between two reads of the clock.
	watchEvery = 5 * time.Millisecond
	// maxStop is the limit of the time for which the machine may stop the process while a test measures times.
	maxStop = 50 * time.Millisecond
	// maxTries is the number of times that a case is measured.
	maxTries = 5
)

// stops are the times at which the machine had stopped the process for maxStop.
var stops struct {
	sync.Mutex
	watch sync.Once
	last  time.Time
}

// watchStops finds stops by a goroutine that sleeps.
func watchStops() {
	for before := time.Now(); ; {
		time.Sleep(watchEvery)
		now := time.Now()
		if now.Sub(before) >= watchEvery+maxStop {
			stops.Lock()
			stops.last = now
			stops.Unlock()
		}
		before = now
	}
}

// stoppedSince reports whether the machine has stopped the process after a time.
func stoppedSince(t time.Time) bool {
	time.Sleep(2 * watchEvery) // a stop may not be recorded yet
	stops.Lock()
	defer stops.Unlock()
	return stops.last.After(t)
}

// measured runs a case. One that fails is measured again if the machine has stopped the process meanwhile: the test
// fails if a try fails without such a stop, or if all fail.
func measured(t testing.TB, run func(t testing.TB)) {
	t.Helper()
	stops.watch.Do(func() { go watchStops() })
	for try := 1; ; try++ {
		m := &measurement{TB: t}
		began := time.Now()
		m.do(run)
		failures := m.end()
		if len(failures) == 0 {
			return
		}
		if try < maxTries && stoppedSince(began) {
			t.Logf("measured again, since the process was stopped: %s", failures)
			continue
		}
		for _, failure := range failures {
			t.Error(failure)
		}
		return
	}
}

// measurement is the testing.TB of one try.
type measurement struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
	ended    bool
}

// do runs a function and then its cleanups, in goroutines that Fatal can end.
func (m *measurement) do(run func(testing.TB)) {
	var wait sync.WaitGroup
	wait.Go(func() { run(m) })
	wait.Wait()
	for _, cleanup := range slices.Backward(m.cleanups) {
		wait.Go(cleanup)
		wait.Wait()
	}
}

// end returns the failures. Later ones fail the test at once.
func (m *measurement) end() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	return m.failures
}

func (m *measurement) fail(text string) {
	_, file, line, _ := runtime.Caller(2)
	text = fmt.Sprintf("%s:%d: %s", filepath.Base(file), line, text)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		m.TB.Error(text)
	}
	m.failures = append(m.failures, text)
}

func (m *measurement) Cleanup(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cleanups = append(m.cleanups, f)
}

func (m *measurement) Error(args ...any)                 { m.fail(fmt.Sprint(args...)) }
func (m *measurement) Errorf(format string, args ...any) { m.fail(fmt.Sprintf(format, args...)) }
func (m *measurement) Fail()                             { m.fail("failed") }

func (m *measurement) Failed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.failures) > 0
}

func (m *measurement) FailNow() {
	m.fail("failed")
	runtime.Goexit()
}

func (m *measurement) Fatal(args ...any) {
	m.fail(fmt.Sprint(args...))
	runtime.Goexit()
}

func (m *measurement) Fatalf(format string, args ...any) {
	m.fail(fmt.Sprintf(format, args...))
	runtime.Goexit()
}

// TestMeasured: a failure counts unless the process was stopped, and then if it is permanent.
func TestMeasured(t *testing.T) {
	stop := func() { // like watchStops, with time to run the case
		stops.Lock()
		defer stops.Unlock()
		stops.last = time.Now().Add(time.Second)
	}
	for name, c := range map[string]struct {
		stopped bool
		fails   int // tries
		want    bool
	}{
		"no failure": {false, 0, false}, "a failure": {false, maxTries, true}, "a failure while stopped": {true, 1, false}, "failures while stopped": {true, maxTries, true},
	} {
		t.Run(name, func(t *testing.T) {
			outer := &measurement{TB: t}
			tries, cleaned := 0, 0
			measured(outer, func(t testing.TB) {
				t.Cleanup(func() { cleaned++ })
				if tries++; c.stopped {
					stop()
				}
				if tries <= c.fails {
					t.Fatalf("try %d", tries)
				}
			})
			if outer.Failed() != c.want || cleaned != tries {
				t.Errorf("failed: %t, want %t; %d tries and %d cleanups", outer.Failed(), c.want, tries, cleaned)
			}
		})
	}
}
