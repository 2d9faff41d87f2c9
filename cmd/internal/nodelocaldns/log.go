package nodelocaldns

import (
	"slices"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// message is a log line about a configuration that is valid.
type message struct {
	severity severity
	text     string
}

type severity int

const (
	info severity = iota
	warning
	failure
)

// messages are those of one rendering.
type messages []message

func (m *messages) add(one message) {
	if !slices.Contains(*m, one) {
		*m = append(*m, one)
	}
}

// log logs the messages that the rendering before did not have.
func (m messages) log(before messages) {
	for _, one := range m {
		if slices.Contains(before, one) {
			continue
		}
		switch one.severity {
		case info:
			clog.Info(one.text)
		case warning:
			clog.Warning(one.text)
		case failure:
			clog.Error(one.text)
		}
	}
}
