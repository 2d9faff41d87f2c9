//go:build linux

package netns

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestProcessInNamespace starts a program from a thread in a namespace: it has the namespace, and the test's thread its own.
func TestProcessInNamespace(t *testing.T) {
	n := Add(t, "pod")
	own, err := os.Readlink("/proc/thread-self/ns/net")
	kit.Must(t, err)
	var p *kit.Process
	var want string
	kit.Must(t, n.Do(func() (err error) {
		want, err = os.Readlink("/proc/thread-self/ns/net")
		p = kit.Start(t, exec.Command("readlink", "/proc/self/ns/net"))
		return err
	}))
	p.Wait(t)
	if got := p.Output(); got != fmt.Sprintln(want) || want == own {
		t.Errorf("the program is in %q, want %q, not %q", got, want, own)
	}
}
