package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/internal/nodefacts"
)

// Corefile is a configuration.
type Corefile struct {
	Name     string          // the name of the file, for messages
	Text     []byte          // as it is parsed
	Lines    int             // the number of lines of Text that are the file's, if the program has added others; else 0
	Facts    nodefacts.Facts // defaults of plugins
	Imported string          // a digest of the imported files: a change of it is a change of the configuration
}

// Reader reads a Corefile as -conf of CoreDNS does: a path, "stdin", or "" for Corefile in the working directory. An empty
// file is an error. Corefile.Name is set with an error too.
type Reader func(conf string) (Corefile, error)

func (c Corefile) input() caddy.Input {
	return caddy.CaddyfileInput{Contents: c.Text, Filepath: c.Name, ServerTypeName: serverType}
}

// load reads the configuration.
func (d *Daemon) load() (Corefile, error) {
	if d.Source != nil {
		return d.Source(d.conf, d.read)
	}
	return d.read(d.conf)
}

var errWatched = errors.New("the program watches its configuration itself")

// loader reads the configuration for the reload plugin. It returns an error in a program with a Source, which reloads by
// itself: two reloads of one change would start two servers, of which one is never stopped.
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
