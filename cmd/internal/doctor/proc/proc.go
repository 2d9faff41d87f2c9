//go:build linux

// Package proc finds the processes of a node, and the sockets on which they serve a port, in a proc file
// system. It adds to procfs the functions that doctor and cleanup share, and changes nothing.
package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"
)

// FS is a proc file system.
type FS struct {
	procfs.FS
	path string
}

// Open returns the proc file system that is mounted on a folder, /proc except in tests.
func Open(path string) (FS, error) {
	mounted, err := procfs.NewFS(path)
	return FS{mounted, path}, err
}

// Path returns the path of a file of the proc file system.
func (f FS) Path(name string) string { return filepath.Join(f.path, name) }

// Process identifies a process. The zero value stands for a process that can't be seen, since it is in
// another PID namespace or of another user.
type Process struct {
	PID  int    // in the process namespace of the reader
	Name string // the kernel's, of up to 15 bytes; "?" if the process has ended
}

// String names the process.
func (p Process) String() string {
	if p.PID == 0 {
		return "a process not seen from here"
	}
	return fmt.Sprintf("%s (pid %d)", p.Name, p.PID)
}

func processOf(p procfs.Proc) Process {
	name, err := p.Comm()
	if err != nil {
		name = "?"
	}
	return Process{p.PID, name}
}

// Command is a process with its arguments and environment.
type Command struct {
	Process
	Args        []string // the program's path first
	Environment []string // NAME=value; empty if it can't be read
	Root, Dir   string   // paths of the root and the working directory of the process
}

// Commands returns the other processes of this network namespace whose program has one of these names.
func (f FS) Commands(programs ...string) (found []Command) {
	self, err := f.Self()
	if err != nil {
		return nil
	}
	here, err := self.Namespaces()
	if err != nil {
		return nil
	}
	for _, p := range f.processes() {
		args, err := p.CmdLine()
		if err != nil || len(args) == 0 || p.PID == os.Getpid() || !slices.Contains(programs, filepath.Base(args[0])) {
			continue
		}
		if there, err := p.Namespaces(); err != nil || there["net"] != here["net"] {
			continue
		}
		environment, _ := p.Environ() // only root may read that of other users
		folder := filepath.Join(f.path, strconv.Itoa(p.PID))
		found = append(found, Command{
			Process: processOf(p), Args: args, Environment: environment,
			Root: filepath.Join(folder, "root"), Dir: filepath.Join(folder, "cwd"),
		})
	}
	return found
}

// processes returns all processes in the order of their numbers.
func (f FS) processes() procfs.Procs {
	all, _ := f.AllProcs() // without /proc there are none
	slices.SortFunc(all, func(a, b procfs.Proc) int { return a.PID - b.PID })
	return all
}

// Socket is a socket that receives packets or connections from any address.
type Socket struct {
	Network string     // udp or tcp
	Local   netip.Addr // the address that it is bound to; an unspecified one stands for every address
	Drops   uint64     // datagrams that were lost because the buffer was full
	Owner   Process

	inode uint64
}

// States of a TCP socket that listens and of a UDP socket that is not connected (Linux, tcp_states.h).
const (
	stateListen      = 10
	stateUnconnected = 7
)

// Listeners returns the sockets that are bound to a port, UDP first, with their processes. If the kernel
// has no IPv6, it returns only the IPv4 sockets.
func (f FS) Listeners(port uint16) (all []Socket, err error) {
	for _, table := range []struct {
		network string
		state   uint64
		v6      bool
		read    func() (procfs.NetIPSocket, error)
	}{
		{"udp", stateUnconnected, false, func() (procfs.NetIPSocket, error) { t, err := f.NetUDP(); return procfs.NetIPSocket(t), err }},
		{"udp", stateUnconnected, true, func() (procfs.NetIPSocket, error) { t, err := f.NetUDP6(); return procfs.NetIPSocket(t), err }},
		{"tcp", stateListen, false, func() (procfs.NetIPSocket, error) { t, err := f.NetTCP(); return procfs.NetIPSocket(t), err }},
		{"tcp", stateListen, true, func() (procfs.NetIPSocket, error) { t, err := f.NetTCP6(); return procfs.NetIPSocket(t), err }},
	} {
		lines, err := table.read()
		if errors.Is(err, fs.ErrNotExist) && table.v6 {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, l := range lines {
			if l.St != table.state || l.LocalPort != uint64(port) {
				continue
			}
			local, _ := netip.AddrFromSlice(l.LocalAddr) // procfs checks the length
			s := Socket{Network: table.network, Local: local.Unmap(), inode: l.Inode}
			if l.Drops != nil {
				s.Drops = *l.Drops
			}
			all = append(all, s)
		}
	}
	f.findOwners(all)
	return all, nil
}

// findOwners sets the processes of sockets.
func (f FS) findOwners(sockets []Socket) {
	byTarget := make(map[string][]int, len(sockets))
	for i, s := range sockets {
		target := "socket:[" + strconv.FormatUint(s.inode, 10) + "]"
		byTarget[target] = append(byTarget[target], i)
	}
	for _, p := range f.processes() {
		if len(byTarget) == 0 {
			return
		}
		targets, _ := p.FileDescriptorTargets() // it has ended, or is another user's
		for _, t := range targets {
			for _, i := range byTarget[t] {
				sockets[i].Owner = processOf(p)
			}
			delete(byTarget, t)
		}
	}
}
