// Package kernel runs programs on a Debian kernel in a virtual machine, to test features that the kernel of the host may
// lack, such as the dummy network driver. Input is static programs, mostly test binaries; output is their output, and a
// failed test if one of them failed.
//
// The machine is emulated by qemu without the host's KVM, has one processor, no network and no disk, and contains only
// busybox, some kernel modules and the files of the job. test/kernel/install.sh installs its parts.
package kernel

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A Program is a program that the machine runs as root.
type Program struct {
	Name string   // name in errors; the file's name in the machine, one path element
	Path string   // the static executable on the host
	Args []string // without the program's name
	// Folder is a folder on the host whose files are copied to the program's working folder, such as the testdata of a
	// package; "" is none.
	Folder string
}

// A File is a file to copy into the machine.
type File struct {
	Path string // absolute, in the machine
	From string // the file on the host; "" where Text is given
	Text string
	Mode os.FileMode // the permissions; 0 is 0644
}

// A Job is the work of one machine between its start and its end.
type Job struct {
	Kernel   Release   // "" is Linux61
	Programs []Program // run one after the other, each also after a failure
	Files    []File
	// Host are names of programs of the host, such as "nft", to add to the machine's PATH.
	Host []string
	// Modules are modules to load besides those of each job.
	Modules []string
	// Without are modules, such as "bridge", that the machine's kernel does not have.
	Without []string
	// Timeout bounds the time between the start of the machine and its end; 0 is two minutes.
	Timeout time.Duration
}

// InsideVariable is the environment variable that is "1" for the programs in a machine, and unset elsewhere. A machine
// meets all requirements of its job's tests: NEARSIDE_REQUIRE_ALL is "1" there too.
const InsideVariable = "NEARSIDE_INSIDE_MACHINE"

// defaultTimeout is ten times the boot time on an idle host.
const defaultTimeout = 2 * time.Minute

// Run boots a machine, runs the job in it and returns its console output. The test fails if a program did not end with
// code 0, and is skipped if a part of the machine is missing, or in short mode.
func Run(t testing.TB, job Job) string {
	t.Helper()
	console, err := run(Require(t, job), job, t.TempDir())
	if err != nil {
		t.Fatalf("%v; the console:\n%s", err, console)
	}
	return console
}

// run is Run without a test. folder is for the machine's initial file system.
func run(parts Parts, job Job, folder string) (console string, err error) {
	image := filepath.Join(folder, "initramfs")
	if err := writeImage(image, parts, job); err != nil {
		return "", err
	}
	if job.Timeout == 0 {
		job.Timeout = defaultTimeout
	}
	console, err = boot(parts, image, job.Timeout)
	if err != nil {
		return console, err
	}
	return console, failures(console, job.Programs)
}

// failures returns an error that names the programs that did not end with code 0. The console has a line for the end of
// each.
func failures(console string, programs []Program) error {
	var failed []string
	for i, p := range programs {
		_, rest, ended := strings.Cut(console, endLine(i))
		if !ended {
			failed = append(failed, p.Name+" did not end")
			continue
		}
		code, _, _ := strings.Cut(rest, ";")
		if code != "0" {
			failed = append(failed, p.Name+" ended with code "+code)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("in the machine %s", strings.Join(failed, ", "))
	}
	return nil
}

// endLine is the console's text before a program's exit code and a semicolon.
func endLine(i int) string { return fmt.Sprintf("machine: program %d ended with code ", i) }

// workFolder is the working folder of a program in the machine.
func workFolder(p Program) string { return path.Join("/job", p.Name) }
