//go:build linux

// Command inside makes the namespaces of a node for the tests of test/cluster. Input is the network namespace that it is
// started in, a folder, and cgroups into which the test moves it; output is a process 1 with its own mounts, processes,
// cgroups and host name. When the test or this program is killed, all of it ends.
//
//	inside enter FOLDER CGROUP      makes the node once it is in cgroups of this name, and waits
//	inside join PROGRAM [ARG...]    moves itself into the cgroups of the node, and executes the program
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostname is the host name of the node.
const hostname = "node"

// cgroupFolder is the mount point of cgroups of version 1.
const cgroupFolder = "/sys/fs/cgroup"

// moveTimeout bounds the wait until the test has moved this process.
const moveTimeout = time.Minute

// kubeletSysctls are the parameters of the whole machine that the kubelet sets. The node has files in their place, so
// that the machine's own do not change.
var kubeletSysctls = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops",
	"kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "enter":
		return enter(args[1], args[2])
	case len(args) == 2 && args[0] == "init":
		return initialize(args[1])
	case len(args) >= 2 && args[0] == "join":
		return join(args[1], args[1:])
	}
	return errors.New("usage: inside enter FOLDER CGROUP | inside join PROGRAM [ARG...]")
}

// enter starts process 1 of the node, prints its number in the machine's namespace, and waits for its end.
func enter(folder, cgroup string) error {
	// Linux ends a child with the thread that started it.
	runtime.LockOSThread()
	if err := waitMoved(cgroup); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, "init", folder)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	child.SysProcAttr = &unix.SysProcAttr{
		// The root of the cgroup namespace is the cgroup of this process now.
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		Pdeathsig:  unix.SIGKILL,
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start process 1: %w", err)
	}
	fmt.Printf("init %d\n", child.Process.Pid)
	return child.Wait()
}

// waitMoved waits until this process is in the cgroup of this name in every hierarchy. It cannot move itself: a process
// that enters a network namespace by its name gets a /sys without cgroups.
func waitMoved(cgroup string) error {
	for end := time.Now().Add(moveTimeout); ; time.Sleep(10 * time.Millisecond) {
		all, err := ownCgroups()
		if err != nil {
			return err
		}
		moved := func(h hierarchy) bool { return path.Base(h.path) == cgroup }
		if len(all) > 0 && !slices.ContainsFunc(all, func(h hierarchy) bool { return !moved(h) }) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not in cgroups named %s after %v: %v", cgroup, moveTimeout, all)
		}
	}
}

// hierarchy is one tree of cgroups of version 1, and the place of this process in it.
type hierarchy struct{ controllers, path string }

func ownCgroups() (all []hierarchy, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number, controllers, path
		if len(parts) == 3 && parts[1] != "" {
			all = append(all, hierarchy{controllers: parts[1], path: parts[2]})
		}
	}
	return all, nil
}

// join becomes a program that runs in the cgroups of the node: a process that enters the namespaces stays in its old
// cgroups.
func join(program string, args []string) error {
	all, err := filepath.Glob(filepath.Join(cgroupFolder, "*"))
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := os.WriteFile(filepath.Join(c, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("move into cgroup: %w", err)
		}
	}
	return fmt.Errorf("run %s: %w", program, unix.Exec(program, args, os.Environ()))
}

// initialize is process 1: it makes the mounts, reports that on standard output, and reaps orphaned processes.
func initialize(folder string) error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := makeMounts(folder); err != nil {
		return err
	}
	fmt.Println("ready")
	for range children {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
		}
	}
	return nil
}

// mount is one call of mount(2).
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func (m mount) do() error {
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.source, m.target, err)
	}
	return nil
}

// makeMounts mounts folders of the node's own where its programs write, and the kernel's view of its namespaces. The
// /sys of its network exists already.
func makeMounts(folder string) error {
	all := []mount{
		// No mount of the node propagates to the machine. The kubelet shares mounts with pods below this one.
		{target: "/", flags: unix.MS_REC | unix.MS_PRIVATE},
		{target: "/", flags: unix.MS_REC | unix.MS_SHARED},
		{source: "proc", target: "/proc", kind: "proc", flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{source: "run", target: "/run", kind: "tmpfs", data: "mode=755"},
	}
	for _, name := range []string{"/var/lib", "/var/log"} {
		own := filepath.Join(folder, filepath.Base(name))
		if err := os.MkdirAll(own, 0o755); err != nil {
			return err
		}
		all = append(all, mount{source: own, target: name, flags: unix.MS_BIND})
	}
	// A file that is mounted, as the resolv.conf of a network namespace is, cannot be replaced.
	etc := filepath.Join(folder, "etc")
	if out, err := exec.Command("cp", "-a", "/etc", etc).CombinedOutput(); err != nil {
		return fmt.Errorf("copy /etc: %w: %s", err, out)
	}
	all = append(all, mount{source: etc, target: "/etc", flags: unix.MS_BIND})
	for _, m := range all {
		if err := m.do(); err != nil {
			return err
		}
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	for _, name := range kubeletSysctls {
		if err := replaceSysctl(folder, name); err != nil {
			return err
		}
	}
	return nil
}

// mountCgroups mounts every hierarchy of version 1. Its root is the cgroup of the node.
func mountCgroups() error {
	if err := (mount{source: "cgroup", target: cgroupFolder, kind: "tmpfs", data: "mode=755"}).do(); err != nil {
		return err
	}
	hierarchies, err := ownCgroups()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		name, data := h.controllers, h.controllers
		if named, ok := strings.CutPrefix(name, "name="); ok {
			name, data = named, "none,"+name
		}
		target := filepath.Join(cgroupFolder, name)
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if err := (mount{source: "cgroup", target: target, kind: "cgroup", data: data}).do(); err != nil {
			return err
		}
	}
	return nil
}

// replaceSysctl mounts a file on a parameter of the kernel, with the same content.
func replaceSysctl(folder, name string) error {
	parameter := filepath.Join("/proc/sys", name)
	text, err := os.ReadFile(parameter)
	if err != nil {
		return err
	}
	own := filepath.Join(folder, "sysctl", name)
	if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(own, text, 0o600); err != nil {
		return err
	}
	return mount{source: own, target: parameter, flags: unix.MS_BIND}.do()
}
