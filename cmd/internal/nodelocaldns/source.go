package nodelocaldns

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// renderedHeader begins a file that this program wrote for people to read.
const renderedHeader = "# Rendered by nodecache, which does not read this file again. The template is "

// choose reads the Corefile that is meant:
//
//   - the template, -basecorefile, if it is there; what becomes of it is written to -conf, and to
//     -corefile if there is no -conf. A template that the command line names, or that was there before,
//     has to be there.
//   - else -conf, "stdin" always;
//   - else -corefile, if the command line names it or it is there;
//   - else Corefile in the working directory, as CoreDNS does.
func (n *Node) choose(conf string, read daemon.Reader) (source daemon.Corefile, target string, err error) {
	if conf != "stdin" {
		source, err = read(n.options.base)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || n.templated || n.set("basecorefile") {
			n.templated = n.templated || err == nil
			target = conf
			if target == "" {
				target = n.options.corefile
			}
			return source, target, err
		}
	}
	if conf == "" && (n.set("corefile") || exists(n.options.corefile)) {
		conf = n.options.corefile
	}
	source, err = read(conf)
	if err == nil && bytes.HasPrefix(source.Text, []byte(renderedHeader)) {
		err = fmt.Errorf("no configuration: nodecache rendered %s from its template, which is not there any more; name it with -basecorefile", source.Name)
	}
	return source, "", err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// notOurs returns an error if there is a file that somebody else wrote.
func notOurs(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(bytes.TrimSpace(text)) > 0 && !bytes.HasPrefix(text, []byte(renderedHeader)) {
		err = fmt.Errorf("%s is there and nodecache has not written it", path)
	}
	return err
}

// write writes the rendered text for people to read, if it changed. Nothing depends on it, so a
// read-only file system is worth one line.
func (n *Node) write(target string, c daemon.Corefile) {
	if target == "" || bytes.Equal(c.Text, n.written) || filepath.Clean(target) == filepath.Clean(c.Name) {
		return
	}
	text := append([]byte(renderedHeader+c.Name+"\n"), c.Text...)
	err := notOurs(target)
	if err == nil {
		err = os.WriteFile(target, text, 0o644)
	}
	if err != nil {
		if n.unwritten != err.Error() {
			clog.Infof("The rendered Corefile is not written, which changes nothing: %s", err)
		}
		n.unwritten = err.Error()
		return
	}
	n.written = c.Text
}
