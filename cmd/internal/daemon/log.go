package daemon

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"os"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

func configureLog(format string) error {
	output := withoutCaddy{os.Stdout}
	clog.SetOutput(output)
	if format != "text" {
		if err := clog.Configure(format, output); err != nil {
			return fmt.Errorf("log-format: %w", err)
		}
		return nil
	}
	log.SetFlags(0)
	return nil
}

// withoutCaddy leaves out what caddy says of a failed restart. Whoever asked for the restart says it
// too, and this program says it with the line numbers of the file.
type withoutCaddy struct{ io.Writer }

var failedRestart = []byte("[ERROR] Restart failed: ")

func (w withoutCaddy) Write(line []byte) (int, error) {
	if bytes.Contains(line, failedRestart) {
		return len(line), nil
	}
	return w.Writer.Write(line)
}
