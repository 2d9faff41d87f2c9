package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/coredns/caddy"
)

// Corefile is a configuration as it is served.
type Corefile struct {
	// Name is that of the file, for messages.
	Name string
	// Text is what is parsed.
	Text []byte
	// Lines says for each line of Text which line of the file it stands for, counted from 1, and 0 if
	// it stands for none. Nil: the text is the file's.
	Lines []int
	// Beside is what else the configuration depends on, such as the contents of imported files or a
	// digest of them: another one is another configuration.
	Beside string
}

// Reader reads a Corefile as CoreDNS's -conf does: a path, "stdin", or "" for Corefile in the working
// directory. One without text is an error. The name is returned with an error too.
type Reader func(conf string) (Corefile, error)

func (c Corefile) input() caddy.Input {
	return caddy.CaddyfileInput{Contents: c.Text, Filepath: c.Name, ServerTypeName: serverType}
}

// load returns the configuration as it is now.
func (d *Daemon) load() (Corefile, error) {
	if d.Source != nil {
		return d.Source(d.conf, d.read)
	}
	return d.read(d.conf)
}

// errWatched says that the program reloads by itself.
var errWatched = errors.New("the program watches its configuration itself")

// loader is what the reload plugin reads with. A program that has a source of its own watches it itself:
// two that reload the same change would start two servers, of which one is never stopped.
func (d *Daemon) loader(string) (caddy.Input, error) {
	if d.Source != nil {
		return nil, errWatched
	}
	c, err := d.load()
	if err != nil {
		reloadRefused.Set(1)
		return nil, err
	}
	d.compare(c.input())
	return c.input(), nil
}

func (d *Daemon) read(conf string) (Corefile, error) {
	name, text, err := d.contents(conf)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = fmt.Errorf("%s is empty", name)
	}
	if err != nil {
		return Corefile{Name: name}, fmt.Errorf("no configuration: %w; name a Corefile with -conf", err)
	}
	return Corefile{Name: name, Text: text}, nil
}

func (d *Daemon) contents(conf string) (name string, text []byte, err error) {
	switch conf {
	case "":
		text, err = os.ReadFile("Corefile")
		return "Corefile", text, err
	case "stdin":
		if d.stdin == nil {
			d.stdin, err = io.ReadAll(os.Stdin)
		}
		return "stdin", d.stdin, err
	}
	text, err = os.ReadFile(filepath.Clean(conf))
	return conf, text, err
}
