package daemon

import (
	"bytes"
	"errors"
	"io"
	"log"
	"os"
	"sync"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

func checkLogFormat(text string) error {
	if text != "text" && text != "json" {
		return errors.New("want text or json")
	}
	return nil
}

func configureLog(format string) error {
	output := &withoutCaddy{Writer: os.Stdout}
	clog.SetOutput(output)
	if format != "text" {
		return clog.Configure(format, output)
	}
	log.SetFlags(0)
	return nil
}

// withoutCaddy drops repeated lines of caddy: each about a failed restart, which this program or the reload plugin logs as
// well; and, after the first, those about an import pattern without files, since each check for changes parses the Corefile.
type withoutCaddy struct {
	io.Writer
	patterns sync.Map // logged lines about patterns, from the text of noFiles on
}

var (
	failedRestart = []byte("[ERROR] Restart failed: ")
	noFiles       = []byte("[WARNING] No files matching import glob pattern: ")
)

func (w *withoutCaddy) Write(line []byte) (int, error) {
	if bytes.Contains(line, failedRestart) {
		return len(line), nil
	}
	if i := bytes.Index(line, noFiles); i >= 0 {
		if _, logged := w.patterns.LoadOrStore(string(line[i:]), true); logged {
			return len(line), nil
		}
	}
	return w.Writer.Write(line)
}
