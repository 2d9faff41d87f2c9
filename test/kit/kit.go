// Package kit has what the tests of all packages need: waiting for a condition, files, and DNS servers and queries. It imports no
// package of nearside, so that the tests of each can use it. Programs under test start with package daemon, network namespaces
// with package netns.
package kit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Patience bounds the wait for something that is due at once, on a machine that is busy with other tests.
const Patience = 30 * time.Second

// pause is the time between two looks at a condition.
const pause = 5 * time.Millisecond

// Eventually waits until a condition is true, and ends the test after Patience.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, Patience, what, condition)
}

// Within waits until a condition is true, and ends the test after a limit.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	Succeeds(t, limit, what, func() error {
		if !condition() {
			return errFalse
		}
		return nil
	})
}

// errFalse is the error of a condition, which has no other.
var errFalse = errors.New("the condition is false")

// Succeeds waits until check returns no error, and ends the test with the last error after a limit.
func Succeeds(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(pause) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
	}
}

// Must ends the test if there is an error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Background runs a function until the end of the test, or until end is called. Both wait until it returns.
func Background(t testing.TB, run func(ctx context.Context)) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	end = func() {
		stop()
		<-done
	}
	t.Cleanup(end)
	return end
}

// Write writes a file and makes its folder.
func Write(t testing.TB, path, text string) {
	t.Helper()
	Must(t, os.MkdirAll(filepath.Dir(path), 0o750), os.WriteFile(path, []byte(text), 0o600))
}

// File writes a file to a folder of the test, and returns its path.
func File(t testing.TB, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	Write(t, path, text)
	return path
}

// Read returns the text of a file.
func Read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
