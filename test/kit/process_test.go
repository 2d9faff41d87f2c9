package kit

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestProcess starts a program, waits for its output and ends it.
func TestProcess(t *testing.T) {
	p := Start(t, exec.Command("sh", "-c", `trap "exit 3" TERM; echo started; while sleep 0.01; do :; done`))
	p.Succeeds(t, Patience, "output", func() error {
		if p.Output() != "started\n" {
			return errors.New("none")
		}
		return nil
	})
	if _, err := p.WaitFor(0); err == nil {
		t.Error("it has ended")
	}
	if code := p.Stop(t); code != 3 {
		t.Errorf("exit code %d", code)
	}
	p.Kill(t)
	got := reason(t, func(t testing.TB) {
		p.Succeeds(t, time.Minute, "never", func() error { return errors.New("the reason") })
	})
	if !strings.Contains(got, "ended, exit status 3: the reason") {
		t.Errorf("ended with %q", got)
	}
	if got := reason(t, func(t testing.TB) { p.Signal(t, syscall.SIGTERM) }); got == "" {
		t.Error("a process that has ended receives signals")
	}
}
