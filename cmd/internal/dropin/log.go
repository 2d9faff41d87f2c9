package dropin

import (
	"slices"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

var write = map[severity]func(...any){info: clog.Info, warning: clog.Warning, failure: clog.Error}

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
		if !slices.Contains(before, one) {
			write[one.severity](one.text)
		}
	}
}
