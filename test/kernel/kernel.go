// Package kernel runs programs on a Debian kernel in a virtual machine, for tests of what the kernel
// of the host may lack, such as the dummy network driver. In go static programs, mostly test
// binaries; out comes what they printed, and a failed test if one of them failed.
//
// The machine is emulated by qemu without help of the host's kernel, has one processor, no network
// and no disk, and holds nothing but busybox, some kernel modules and the files of the job.
// test/kernel/install.sh gets what it needs.
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

// A Program is run in the machine as root.
type Program struct {
	Name string   // what the failure of the test calls it; the file's name in the machine, one path element
	Path string   // the static executable on the host
	Args []string // without the program's name
	// Folder is a folder on the host whose files are at hand in the program's working folder, with
	// the same name, such as the testdata of a package; "" is none.
	Folder string
}

// A File is put into the machine.
type File struct {
	Path string // absolute, in the machine
	From string // the file on the host; "" where Text is given
	Text string
	Mode os.FileMode // the permissions; 0 is 0644
}

// A Job is what one machine does between its start and its end.
type Job struct {
	Programs []Program // run one after the other, each whatever became of those before
	Files    []File
	// Host are names of programs of the host, such as "nft", that the machine has in its PATH.
	Host []string
	// Without are modules, such as "bridge", that the machine's kernel is to lack.
	Without []string
	// Timeout bounds the time between the start of the machine and its end; 0 is two minutes.
	Timeout time.Duration
}

// InsideVariable is the environment variable that is "1" for the programs in a machine, and that
// nothing sets elsewhere. A machine has all that its job's tests need, so that those do not skip:
// NEARSIDE_REQUIRE_ALL is "1" there too.
const InsideVariable = "NEARSIDE_INSIDE_MACHINE"

// defaultTimeout leaves a loaded host ten times what the machine takes to boot on an idle one.
const defaultTimeout = 2 * time.Minute

// Run boots a machine, runs the job in it and returns what its console showed. The test fails if a
// program did not end with code 0, and is skipped if something that the machine needs is missing or
// the tests are to be short.
func Run(t testing.TB, job Job) string {
	t.Helper()
	console, err := run(Require(t, job.Host...), job, t.TempDir())
	if err != nil {
		t.Fatalf("%v; the console:\n%s", err, console)
	}
	return console
}

// run is Run without a test. The folder is for the machine's first file system.
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

// failures returns an error that tells which programs did not end with code 0. The console has a
// line for each that ended.
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

// endLine is what the console shows before a program's exit code and a semicolon.
func endLine(i int) string { return fmt.Sprintf("machine: program %d ended with code ", i) }

// workFolder is the working folder of a program in the machine.
func workFolder(p Program) string { return path.Join("/job", p.Name) }
