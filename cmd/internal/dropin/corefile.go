package dropin

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// renderedHeader begins a file that this program has written.
const renderedHeader = "# Rendered by nodecache, which does not read this file again. The template is "

// choose reads the Corefile:
//
//   - the template, -basecorefile, if it exists; the rendered text is written to target, which is -conf, or -corefile
//     without -conf. A template that is on the command line or existed before must exist.
//   - else -conf; "stdin" always;
//   - else -corefile, if it is on the command line or exists;
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
		err = fmt.Errorf("no configuration: nodecache rendered %s from its template, which does not exist any more; name it with -basecorefile", source.Name)
	}
	return source, "", err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkOverwritable returns an error if there is a file that this program has not written.
func checkOverwritable(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(bytes.TrimSpace(text)) > 0 && !bytes.HasPrefix(text, []byte(renderedHeader)) {
		err = fmt.Errorf("%s exists and nodecache has not written it", path)
	}
	return err
}

// write writes the rendered Corefile for people to read, if it has changed. No program reads it, so a failure, such as on a
// read-only file system, is logged once.
func (n *Node) write(target string, c daemon.Corefile) {
	if target == "" || filepath.Clean(target) == filepath.Clean(c.Name) {
		return
	}
	text := renderedHeader + c.Name + "\n" + string(c.Text) + describe(c, 1)
	if text == n.written {
		return
	}
	err := checkOverwritable(target)
	if err == nil {
		err = os.WriteFile(target, []byte(text), 0o644)
	}
	if err != nil {
		if n.unwritten != err.Error() {
			clog.Infof("Rendered Corefile not written; no program reads it: %s", err)
		}
		n.unwritten = err.Error()
		return
	}
	n.written = text
}

// describe returns comments with the defaults that a Corefile does not show, in the words of a Corefile. offset is the
// number of lines before the Corefile's.
func describe(c daemon.Corefile, offset int) string {
	var lines []string
	f := c.Facts
	for _, line := range slices.Sorted(maps.Keys(f.Forward)) {
		d := f.Forward[line]
		var options []string
		if d.Servers != nil {
			options = append(options, "to "+strings.Join(d.Servers, " "))
		}
		if d.TCP {
			options = append(options, "force_tcp, fallback udp")
		}
		if d.Caller {
			options = append(options, strings.TrimSpace("caller "+f.Node+" "+f.Zone))
		}
		lines = append(lines, fmt.Sprintf("# forward in line %d: %s\n", line+offset, strings.Join(options, ", ")))
	}
	if f.Node != "" && bytes.Contains(c.Text, []byte("@nodelocal")) {
		lines = append(lines, "# autopath @nodelocal: node "+f.Node+"\n")
	}
	if len(lines) == 0 {
		return ""
	}
	return "# Defaults of directives, where no option overrides them:\n" + strings.Join(lines, "")
}
