package kernel

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// Release is a release of Linux of which install.sh installs Debian's kernel.
type Release string

// The releases of Debian 12: its own, and a later one that it has beside it.
const (
	Linux61  Release = "6.1"
	Linux612 Release = "6.12" // has tcx and netkit
)

// Parts are the files on the host that a machine consists of.
type Parts struct {
	Qemu    string // qemu-system-x86_64
	Busybox string // a static busybox
	Kernel  string // the compressed kernel image
	Modules string // the folder with the kernel's modules
}

// Require finds the parts of a job's machine, and the programs of the host that the job names. If one is missing, it skips
// or fails the test (see kit.Lacking). It skips the test in short mode too.
func Require(t testing.TB, job Job) Parts {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine, which is not short")
	}
	return requireParts(t, job)
}

func requireParts(t testing.TB, job Job) Parts {
	t.Helper()
	parts, err := findParts(job.Kernel)
	for _, p := range job.Host {
		if err == nil {
			_, err = exec.LookPath(p)
		}
	}
	if err != nil {
		kit.Lacking(t, err.Error()+"; run test/install.sh")
	}
	return parts
}

func findParts(kernel Release) (Parts, error) {
	var p Parts
	var err error
	if p.Qemu, err = exec.LookPath("qemu-system-x86_64"); err != nil {
		return p, fmt.Errorf("find qemu: %w", err)
	}
	if p.Busybox, err = exec.LookPath("busybox"); err != nil {
		return p, fmt.Errorf("find busybox: %w", err)
	}
	if err := mustBeStatic(p.Busybox); err != nil {
		return p, err
	}
	folder, err := kernelFolder(kernel)
	if err != nil {
		return p, err
	}
	p.Kernel = filepath.Join(folder, "vmlinuz")
	p.Modules = filepath.Join(folder, "modules")
	for _, path := range []string{p.Kernel, p.Modules} {
		if _, err := os.Stat(path); err != nil {
			return p, fmt.Errorf("find kernel: %w", err)
		}
	}
	return p, nil
}

// kernelFolder returns install.sh's folder for a kernel.
func kernelFolder(kernel Release) (string, error) {
	name := "kernel"
	if kernel != "" && kernel != Linux61 {
		name += "-" + string(kernel)
	}
	if folder := os.Getenv("NEARSIDE_TEST_BIN"); folder != "" {
		return filepath.Join(folder, name), nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find kernel: %w", err)
	}
	return filepath.Join(cache, "nearside", "bin", name), nil
}

// mustBeStatic returns an error if the file is not a program that the machine can run: it has no
// dynamic linker and no libraries.
func mustBeStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	if f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("%s is a program for %v, not for %v", path, f.Machine, elf.EM_X86_64)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("%s is not linked statically", path)
		}
	}
	return nil
}
