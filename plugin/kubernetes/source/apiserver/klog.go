package apiserver

import (
	"sync"
	"sync/atomic"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// RedirectKlog redirects client-go's log to that of the server.
var RedirectKlog = sync.OnceFunc(func() {
	klog.SetLogger(logr.New(&klogSink{Formatter: funcr.NewFormatter(funcr.Options{}), log: log}))
})

// withoutRepeats returns a logger that logs equal errors in succession once.
func withoutRepeats(to clog.P) klog.Logger {
	return logr.New(&klogSink{Formatter: funcr.NewFormatter(funcr.Options{}), log: to, last: new(atomic.Pointer[string])})
}

// klogSink writes client-go's log, errors as errors, so that alerts on the log see them.
type klogSink struct {
	funcr.Formatter
	log  clog.P
	last *atomic.Pointer[string] // the last error; nil if repeats are logged
}

// Info implements logr.LogSink.
func (s klogSink) Info(level int, msg string, pairs ...any) {
	_, text := s.FormatInfo(level, msg, pairs)
	s.log.Info("client-go: " + text)
}

// Error implements logr.LogSink.
func (s klogSink) Error(err error, msg string, pairs ...any) {
	_, text := s.FormatError(err, msg, pairs)
	if s.last != nil {
		if last := s.last.Swap(&text); last != nil && *last == text {
			return
		}
	}
	s.log.Error("client-go: " + text)
}

// WithName implements logr.LogSink.
func (s klogSink) WithName(name string) logr.LogSink {
	s.AddName(name)
	return &s
}

// WithValues implements logr.LogSink.
func (s klogSink) WithValues(pairs ...any) logr.LogSink {
	s.AddValues(pairs)
	return &s
}
