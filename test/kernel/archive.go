package kernel

import (
	"fmt"
	"io"
	"os"
	"path"
	"strings"
)

// The file types of a cpio archive are those of stat(2).
const (
	typeFolder = 0o040000
	typeFile   = 0o100000
	typeMask   = 0o170000
)

// trailer is the name of the entry that ends a cpio archive.
const trailer = "TRAILER!!!"

// An archive writes a cpio archive of the "newc" format, which the kernel unpacks as the initial file system
// (Documentation/driver-api/early-userspace/buffer-format.rst). close returns the first error.
type archive struct {
	w       io.Writer
	inode   int
	folders map[string]bool
	err     error
}

func newArchive(w io.Writer) *archive { return &archive{w: w, folders: map[string]bool{"": true}} }

// folder adds a folder and its parents, each once.
func (a *archive) folder(name string) {
	name = strings.Trim(path.Clean("/"+name), "/")
	if a.folders[name] {
		return
	}
	a.folder(path.Dir(name))
	a.folders[name] = true
	a.entry(name, typeFolder|0o755, nil)
}

// file adds a file and its folders.
func (a *archive) file(name string, mode os.FileMode, data []byte) {
	name = strings.Trim(path.Clean("/"+name), "/")
	a.folder(path.Dir(name))
	a.entry(name, typeFile|int(mode.Perm()), data)
}

// copy adds a file of the host.
func (a *archive) copy(name string, mode os.FileMode, from string) {
	if a.err != nil {
		return
	}
	data, err := os.ReadFile(from)
	if err != nil {
		a.err = fmt.Errorf("read for the machine: %w", err)
		return
	}
	a.file(name, mode, data)
}

// close ends the archive.
func (a *archive) close() error {
	a.entry(trailer, 0, nil)
	return a.err
}

// entry writes a header of fixed length, the name and the data. Both are padded to a multiple of four bytes; all numbers
// are hexadecimal.
func (a *archive) entry(name string, mode int, data []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	links := 1
	if mode&typeMask == typeFolder {
		links = 2
	}
	head := "070701"
	for _, field := range []int{
		a.inode, mode, 0 /* user */, 0 /* group */, links, 0, /* modified */
		len(data), 0, 0 /* device */, 0, 0 /* device that it is */, len(name) + 1, 0, /* checksum */
	} {
		head += fmt.Sprintf("%08x", field)
	}
	head += name + "\x00"
	for _, part := range [][]byte{[]byte(head), filling(len(head)), data, filling(len(data))} {
		if _, err := a.w.Write(part); err != nil {
			a.err = fmt.Errorf("write the machine's files: %w", err)
			return
		}
	}
}

// filling returns the zeros of padding n to a multiple of four.
func filling(n int) []byte { return make([]byte, -n&3) }
