package kernel

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// endWait bounds the wait for the last of qemu's output after qemu was killed.
const endWait = 10 * time.Second

// kernelLine is the kernel's command line. The console shows errors and worse; a panic ends the machine at once. The
// check of the timer's rate is off: it panics when a loaded host emulates the timer too slowly.
const kernelLine = "console=ttyS0 loglevel=4 no_timer_check panic=-1 reboot=t rdinit=/init"

// clock derives the machine's time from the number of executed instructions, 2^shift nanoseconds for each: nothing in
// the machine is late on a host without CPU time for qemu. An idle machine skips to its next timer.
const clock = "shift=2,sleep=off"

// boot runs a machine until it ends, and returns its console output.
func boot(parts Parts, image string, timeout time.Duration) (console string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, parts.Qemu,
		"-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "1", "-m", "512M",
		"-icount", clock, "-rtc", "clock=vm",
		"-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none",
		"-serial", "stdio", "-no-reboot",
		"-kernel", parts.Kernel, "-initrd", image, "-append", kernelLine,
	)
	cmd.SysProcAttr = endWithParent()
	cmd.WaitDelay = endWait
	out, err := cmd.CombinedOutput()
	console = strings.ReplaceAll(string(out), "\r\n", "\n")
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return console, fmt.Errorf("the machine did not end within %v", timeout)
	}
	if err != nil {
		return console, fmt.Errorf("run qemu: %w", err)
	}
	return console, nil
}
