package proc

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is a process that this one can see.
type Process struct {
	// PID is its number in the process namespace of the reader.
	PID int
	// Name is what the kernel calls it, at most 15 bytes.
	Name string
}

// Owners returns the processes that hold sockets, by the sockets' inodes. A socket whose process is
// in another process namespace, or belongs to another user, is missing.
func (r Root) Owners(ctx context.Context, sockets []Socket) map[uint64]Process {
	wanted := make(map[string]uint64, len(sockets))
	for _, s := range sockets {
		wanted["socket:["+strconv.FormatUint(s.Inode, 10)+"]"] = s.Inode
	}
	owners := make(map[uint64]Process, len(sockets))
	for _, pid := range r.pids() {
		if ctx.Err() != nil || len(owners) == len(sockets) {
			break
		}
		folder := filepath.Join(r.Proc, strconv.Itoa(pid), "fd")
		descriptors, err := os.ReadDir(folder)
		if err != nil {
			continue // ended meanwhile, or not ours to look into
		}
		for _, d := range descriptors {
			target, err := os.Readlink(filepath.Join(folder, d.Name()))
			if err != nil {
				continue
			}
			if inode, ok := wanted[target]; ok {
				owners[inode] = Process{PID: pid, Name: r.name(pid)}
			}
		}
	}
	return owners
}

// Command is a process with what it was started with.
type Command struct {
	Process
	// Args are the arguments, the program's path first.
	Args []string
	// Environment has one NAME=value each; empty where it may not be read.
	Environment []string
	// folder is that of the process in /proc.
	folder string
}

// File returns the path by which a file of the process is read here: the process may have a root and
// a working directory of its own.
func (c Command) File(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Join(c.folder, "root", path)
	}
	return filepath.Join(c.folder, "cwd", path)
}

// Commands returns the processes of this network namespace whose program has one of these names,
// without the reading process.
func (r Root) Commands(programs ...string) []Command {
	here, err := os.Readlink(filepath.Join(r.Proc, "self/ns/net"))
	if err != nil {
		return nil
	}
	var found []Command
	for _, pid := range r.pids() {
		folder := filepath.Join(r.Proc, strconv.Itoa(pid))
		args := zeroTerminated(filepath.Join(folder, "cmdline"))
		if len(args) == 0 || pid == os.Getpid() {
			continue
		}
		there, err := os.Readlink(filepath.Join(folder, "ns/net"))
		if err != nil || there != here {
			continue
		}
		for _, program := range programs {
			if filepath.Base(args[0]) == program {
				found = append(found, Command{
					Process:     Process{PID: pid, Name: r.name(pid)},
					Args:        args,
					Environment: zeroTerminated(filepath.Join(folder, "environ")),
					folder:      folder,
				})
			}
		}
	}
	return found
}

func (r Root) pids() []int {
	entries, err := os.ReadDir(r.Proc)
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// name returns the kernel's name of a process, or "?" when it has ended.
func (r Root) name(pid int) string {
	text, err := os.ReadFile(filepath.Join(r.Proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(text))
}

// zeroTerminated returns the strings of a file in which each ends with a zero byte.
func zeroTerminated(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
