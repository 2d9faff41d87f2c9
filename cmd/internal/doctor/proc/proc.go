// Package proc reads what the kernel says about a node in text files: sockets, processes, counters,
// sysctls and the features that it was built with. In go the folders where these files are, so that
// a test has a tree of its own; out come facts. It changes nothing, loads no kernel module, and
// imports nothing but the standard library.
package proc

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Root names the folders.
type Root struct {
	// Proc is /proc.
	Proc string
	// Modules is /lib/modules: one folder for each kernel release.
	Modules string
	// Boot is /boot, where distributions leave the configuration of each kernel.
	Boot string
}

// Host is the root of a running machine.
func Host() Root { return Root{Proc: "/proc", Modules: "/lib/modules", Boot: "/boot"} }

// Release returns the kernel's release, such as 6.1.0-13-amd64.
func (r Root) Release() (string, error) {
	text, err := os.ReadFile(filepath.Join(r.Proc, "sys/kernel/osrelease"))
	return strings.TrimSpace(string(text)), err
}

// Sysctl returns the numbers of a sysctl such as net.core.rmem_max, or net.ipv4.udp_mem that has
// three.
func (r Root) Sysctl(name string) ([]int64, error) {
	text, err := os.ReadFile(filepath.Join(r.Proc, "sys", strings.ReplaceAll(name, ".", "/")))
	if err != nil {
		return nil, err
	}
	var numbers []int64
	for _, field := range strings.Fields(string(text)) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("sysctl %s: %w", name, err)
		}
		numbers = append(numbers, n)
	}
	if len(numbers) == 0 {
		return nil, fmt.Errorf("sysctl %s is empty", name)
	}
	return numbers, nil
}

// Capabilities returns the effective capabilities of this process, one bit each, see capabilities(7).
func (r Root) Capabilities() (uint64, error) {
	text, err := os.ReadFile(filepath.Join(r.Proc, "self/status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if mask, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
		}
	}
	return 0, fmt.Errorf("%s has no CapEff", filepath.Join(r.Proc, "self/status"))
}
