package kit

import (
	"bytes"
	"log"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Log is an output of a logger, which may be written by several goroutines.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Logged returns the log of the process until the end of the test.
func Logged(t testing.TB) *Log {
	t.Helper()
	l, before := new(Log), log.Writer()
	log.SetOutput(l)
	t.Cleanup(func() { log.SetOutput(before) })
	return l
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns the text so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset forgets the text.
func (l *Log) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// Count returns how often the text has a part.
func (l *Log) Count(part string) int { return strings.Count(l.String(), part) }

// Lines returns the lines that have all of parts.
func (l *Log) Lines(parts ...string) (found []string) {
	for line := range strings.Lines(l.String()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, line)
		}
	}
	return found
}
