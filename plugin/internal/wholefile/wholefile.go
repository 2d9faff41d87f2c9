// Package wholefile replaces files in one step: a crash, or another process that writes the same file, leaves an old file or a new
// one. Input is a path and a function that writes; output is a file with mode 0600. It imports only the standard library.
package wholefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Replace replaces a file by the output of write. The present file remains until the new one is complete.
func Replace(path string, write func(io.Writer) error) (err error) {
	f, err := create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignore(os.Remove(f.Name()), fs.ErrNotExist))
		}
	}()
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Open opens a file to be read, and returns its size in bytes. Folders, pipes and devices are an error.
func Open(path string) (f *os.File, size int64, err error) {
	f, err = os.OpenFile(filepath.Clean(path), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe would wait for its writer
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// temporary ends the name of a file that is being written. CreateTemp replaces the asterisk: processes that write the same file
// have files of their own.
const temporary = ".*.tmp"

func create(path string) (*os.File, error) {
	return os.CreateTemp(filepath.Dir(path), filepath.Base(path)+temporary)
}

// leftover is the age from which a temporary file counts as left by a process that has ended.
const leftover = time.Minute

// Check returns an error if the file cannot be written, and removes the temporary files of processes that were killed.
func Check(path string) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		return err
	}
	old, err := filepath.Glob(escape(path) + temporary)
	for _, name := range old {
		info, staterr := os.Stat(name)
		if staterr == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > leftover {
			err = errors.Join(err, ignore(os.Remove(name), fs.ErrNotExist))
		}
	}
	return err
}

// escape returns a pattern of filepath.Glob that matches a path.
func escape(path string) string {
	var b []byte
	for i := range len(path) {
		switch path[i] {
		case '*', '?', '[', '\\':
			b = append(b, '\\')
		}
		b = append(b, path[i])
	}
	return string(b)
}

// ignore returns nil for an ignored error, and other errors unchanged.
func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}
