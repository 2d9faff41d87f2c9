package kernel

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/kit"
)

// writeImage writes the initial file system of a machine that runs the job: busybox, the modules, the job's files and
// programs, and the script /init that the kernel starts.
func writeImage(to string, parts Parts, job Job) (err error) {
	found, err := findModules(parts.Modules)
	if err != nil {
		return err
	}
	lacking := func(name string) bool { return slices.Contains(job.Without, name) }
	load, err := found.load(slices.DeleteFunc(slices.Concat(wanted, job.Modules), lacking))
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("write the machine's files: %w", err)
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := bufio.NewWriter(f)
	a := newArchive(w)
	for _, folder := range []string{"dev", "proc", "sys", "run", "tmp", "etc"} {
		a.folder(folder)
	}
	a.copy("bin/busybox", 0o755, parts.Busybox)
	for _, m := range load {
		a.file(modulePath(m), 0o644, m.data)
	}
	if err := addHost(a, job.Host); err != nil {
		return err
	}
	for _, file := range job.Files {
		addFile(a, file)
	}
	for _, p := range job.Programs {
		addProgram(a, p)
	}
	a.file("init", 0o755, []byte(initScript(load, job.Programs)))
	if err := a.close(); err != nil {
		return err
	}
	return w.Flush()
}

func modulePath(m module) string { return "/lib/modules/" + m.name + moduleSuffix }

func addFile(a *archive, file File) {
	mode := file.Mode
	if mode == 0 {
		mode = 0o644
	}
	if file.From != "" {
		a.copy(file.Path, mode, file.From)
		return
	}
	a.file(file.Path, mode, []byte(file.Text))
}

// addProgram adds the program and the files of its folder.
func addProgram(a *archive, p Program) {
	if err := mustBeStatic(p.Path); a.err == nil {
		a.err = err
	}
	a.copy(path.Join(workFolder(p), p.Name), 0o755, p.Path)
	if p.Folder == "" || a.err != nil {
		return
	}
	parent := filepath.Dir(filepath.Clean(p.Folder))
	a.err = filepath.WalkDir(p.Folder, func(from string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(parent, from)
		if err != nil {
			return err
		}
		a.copy(path.Join(workFolder(p), filepath.ToSlash(name)), 0o644, from)
		return a.err
	})
}

// initScript is the first program of the machine. The machine ends by a reboot, at which qemu exits: switching it off
// needs more drivers.
func initScript(load []module, programs []Program) string {
	var b strings.Builder
	b.WriteString(`#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp ` + InsideVariable + `=1 ` + kit.RequireAll + `=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
ip link set lo up
`)
	for _, m := range load {
		fmt.Fprintf(&b, "insmod %s\n", modulePath(m))
	}
	for i, p := range programs {
		fmt.Fprintf(&b, "cd %s && ./%s", shellWord(workFolder(p)), shellWord(p.Name))
		for _, arg := range p.Args {
			b.WriteString(" " + shellWord(arg))
		}
		fmt.Fprintf(&b, "\ncode=$?; echo; echo %s\"$code;\"\n", shellWord(endLine(i)))
	}
	b.WriteString("reboot -f\n")
	return b.String()
}

// shellWord quotes a word for the shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
