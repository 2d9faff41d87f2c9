package daemon

import (
	"bytes"
	"errors"
	"io"
	"log"
	"os"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

func checkLogFormat(text string) error {
	if text != "text" && text != "json" {
		return errors.New("want text or json")
	}
	return nil
}

func configureLog(format string) error {
	output := withoutCaddy{os.Stdout}
	clog.SetOutput(output)
	if format != "text" {
		return clog.Configure(format, output)
	}
	log.SetFlags(0)
	return nil
}

// withoutCaddy drops caddy's log line about a failed restart. This program or the reload plugin, whichever restarted,
// logs it too.
type withoutCaddy struct{ io.Writer }

var failedRestart = []byte("[ERROR] Restart failed: ")

func (w withoutCaddy) Write(line []byte) (int, error) {
	if bytes.Contains(line, failedRestart) {
		return len(line), nil
	}
	return w.Writer.Write(line)
}
