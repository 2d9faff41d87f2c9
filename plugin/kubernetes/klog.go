package kubernetes

import (
	"sync"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// redirectKlog sends what client-go logs to the server's log.
var redirectKlog = sync.OnceFunc(func() {
	klog.SetLogger(logr.New(&klogSink{funcr.NewFormatter(funcr.Options{})}))
})

// klogSink writes what client-go logs: its errors as errors, so that alerts on the log see them.
type klogSink struct{ funcr.Formatter }

// Info implements logr.LogSink.
func (s klogSink) Info(level int, msg string, pairs ...any) {
	_, text := s.FormatInfo(level, msg, pairs)
	log.Info("client-go: " + text)
}

// Error implements logr.LogSink.
func (s klogSink) Error(err error, msg string, pairs ...any) {
	_, text := s.FormatError(err, msg, pairs)
	log.Error("client-go: " + text)
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
