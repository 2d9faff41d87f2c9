package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// steeredMode is the argument that makes this program a run in a network namespace; the other ones are those of the run.
const steeredMode = "steered"

// loadCores is loadCore as a mask.
const loadCores = "2"

// steer runs this program with the arguments in a network namespace whose loopback interface hands every packet to the core
// of the load. Otherwise the kernel does the receiver's work in the sender's system call, which counts as the server's: over a
// real network it is the work of another machine.
func steer(ctx context.Context, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, append([]string{steeredMode}, args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run in a network namespace: %w", err)
	}
	return nil
}

// steered makes the namespaces of the process ready.
func steered() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("steer: private mounts: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil { // of the namespace
		return fmt.Errorf("steer: mount /sys: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return fmt.Errorf("steer: loopback interface: %w", err)
	}
	return os.WriteFile("/sys/class/net/lo/queues/rx-0/rps_cpus", []byte(loadCores), 0)
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}
