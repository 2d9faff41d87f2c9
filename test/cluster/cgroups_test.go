//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// cgroupPrefix is the first part of the names of cgroups here; the process id of the test follows.
const cgroupPrefix = "nearside-test-"

// hierarchy is one tree of cgroups of version 1, with its mount point.
type hierarchy struct {
	controllers string // as in /proc/self/cgroup
	folder      string // the cgroup of this process
}

// hierarchies returns those of this process. The test is skipped on a machine that has cgroups of version 2 only, which
// are not supported yet.
func hierarchies(t *testing.T) (all []hierarchy) {
	t.Helper()
	mounts := kit.Read(t, "/proc/self/mountinfo")
	for line := range strings.Lines(kit.Read(t, "/proc/self/cgroup")) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(parts) != 3 || parts[1] == "" {
			continue
		}
		if folder := mountOf(mounts, parts[1]); folder != "" {
			all = append(all, hierarchy{controllers: parts[1], folder: filepath.Join(folder, parts[2])})
		}
	}
	if len(all) == 0 {
		kit.Lacking(t, "no cgroups of version 1, and those of version 2 the test cannot make yet")
	}
	return all
}

// mountOf returns the mount point of a hierarchy with these controllers, from the text of mountinfo.
func mountOf(mounts, controllers string) string {
	want := strings.Split(controllers, ",")
	for line := range strings.Lines(mounts) {
		before, after, found := strings.Cut(line, " - ")
		point, rest := strings.Fields(before), strings.Fields(after) // type, source, options
		if !found || len(point) < 5 || len(rest) < 3 || rest[0] != "cgroup" {
			continue
		}
		options := strings.Split(rest[2], ",")
		if !slices.ContainsFunc(want, func(c string) bool { return !slices.Contains(options, c) }) {
			return point[4]
		}
	}
	return ""
}

func TestMountOf(t *testing.T) {
	const mounts = "25 30 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755\n" +
		"26 25 0:23 / /sys/fs/cgroup/systemd rw shared:9 - cgroup cgroup rw,xattr,name=systemd\n" +
		"27 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
		"28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for controllers, want := range map[string]string{
		"name=systemd": "/sys/fs/cgroup/systemd",
		"cpu,cpuacct":  "/sys/fs/cgroup/cpu,cpuacct",
		"memory":       "",
	} {
		t.Run(controllers, func(t *testing.T) {
			if got := mountOf(mounts, controllers); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// makeCgroups makes the node's cgroup in every hierarchy, and removes them at the end of the test, when the node's
// processes have ended.
func makeCgroups(t *testing.T) (folders []string) {
	t.Helper()
	for _, h := range hierarchies(t) {
		removeOldCgroups(t, h.folder)
		folder := filepath.Join(h.folder, cgroupPrefix+strconv.Itoa(os.Getpid()))
		kit.Must(t, os.Mkdir(folder, 0o755))
		t.Cleanup(func() {
			if err := removeCgroup(folder); err != nil {
				t.Error(err)
			}
		})
		folders = append(folders, folder)
		if !strings.Contains(h.controllers, "cpuset") {
			continue
		}
		for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // which are unset in a new cgroup
			kit.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(kit.Read(t, filepath.Join(h.folder, name))), 0))
		}
	}
	return folders
}

// removeOldCgroups removes the cgroups of test processes that have ended.
func removeOldCgroups(t *testing.T, folder string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(folder, cgroupPrefix+"*"))
	kit.Must(t, err)
	for _, old := range all {
		if gone(strings.TrimPrefix(filepath.Base(old), cgroupPrefix)) {
			if err := removeCgroup(old); err != nil {
				t.Logf("what an earlier run left: %v", err)
			}
		}
	}
}

// gone reports whether no process has this id.
func gone(pid string) bool {
	number, err := strconv.Atoi(pid)
	return err == nil && errors.Is(syscall.Kill(number, 0), syscall.ESRCH)
}

// removeCgroup removes a cgroup and those in it. The kernel refuses for a moment after the last process.
func removeCgroup(folder string) error {
	var folders []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, f := range slices.Backward(folders) {
		for end := time.Now().Add(cleanupTimeout); ; time.Sleep(20 * time.Millisecond) {
			// Not os.Remove, which returns the error of removing a file.
			err := syscall.Rmdir(f)
			if err == nil {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("remove cgroup %s: %w", f, err)
			}
		}
	}
	return nil
}
