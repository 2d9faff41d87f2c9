//go:build linux

package cluster

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// confined is the kernel's view of a deployed program, in the fields of /proc/PID/status.
type confined struct {
	program string
	uid     string
	// capabilities are the current capabilities, and those that the program could ever obtain.
	capabilities []int
}

var programsConfined = []confined{
	{"clusterdns", "65532", []int{unix.CAP_NET_BIND_SERVICE}},
	{"nodecache", "0", []int{unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_ADMIN}},
}

// testConfined checks that the programs have the rights of their manifests, and no others.
func (c *cluster) testConfined(t *testing.T) {
	for _, want := range programsConfined {
		t.Run(want.program, func(t *testing.T) { c.verifyConfined(t, want) })
	}
}

// verifyConfined checks the processes of a program.
func (c *cluster) verifyConfined(t *testing.T, want confined) {
	t.Helper()
	all := strings.Fields(c.run(t, "ps", "-C", want.program, "-o", "pid="))
	if len(all) == 0 {
		t.Fatal("it does not run")
	}
	for _, pid := range all {
		for _, problem := range want.problems(c.run(t, "cat", "/proc/"+pid+"/status")) {
			t.Errorf("process %s: %s", pid, problem)
		}
		options := ""
		for line := range strings.Lines(c.run(t, "cat", "/proc/"+pid+"/mountinfo")) {
			if words := strings.Fields(line); len(words) > 5 && words[4] == "/" {
				options = words[5]
			}
		}
		if !strings.HasPrefix(options, "ro,") {
			t.Errorf("process %s: its root is mounted with %q", pid, options)
		}
	}
}

// problems returns the differences of a status from the wanted one.
func (c confined) problems(status string) (all []string) {
	got := map[string]string{}
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		got[name] = strings.Join(strings.Fields(value), " ")
	}
	var set uint64
	for _, bit := range c.capabilities {
		set |= 1 << bit
	}
	capabilities := fmt.Sprintf("%016x", set)
	for _, w := range []struct{ name, value string }{
		{"Uid", strings.Join([]string{c.uid, c.uid, c.uid, c.uid}, " ")},
		{"CapPrm", capabilities}, {"CapEff", capabilities}, {"CapBnd", capabilities}, {"CapAmb", fmt.Sprintf("%016x", 0)},
		{"NoNewPrivs", "1"},
		{"Seccomp", strconv.Itoa(unix.SECCOMP_MODE_FILTER)},
	} {
		if got[w.name] != w.value {
			all = append(all, fmt.Sprintf("%s is %q, not %q", w.name, got[w.name], w.value))
		}
	}
	return all
}

func TestProblems(t *testing.T) {
	const status = "Name:\tclusterdns\nUid:\t65532\t65532\t65532\t65532\nCapPrm:\t0000000000000400\nCapEff:\t0000000000000400\n" +
		"CapBnd:\t0000000000000400\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n"
	for _, c := range []struct {
		name, status string
		problems     int
	}{
		{"as it is wanted", status, 0},
		{"root", strings.Replace(status, "65532\t65532", "0\t0", 1), 1},
		{"more capabilities", strings.ReplaceAll(status, "0000000000000400", "00000000a80425fb"), 3},
		{"no seccomp", strings.Replace(status, "Seccomp:\t2", "Seccomp:\t0", 1), 1},
		{"nothing", "", 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := programsConfined[0].problems(c.status); len(got) != c.problems {
				t.Errorf("got %q, want %d", got, c.problems)
			}
		})
	}
}
