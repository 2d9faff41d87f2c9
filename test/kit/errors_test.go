package kit

import (
	"errors"
	"testing"
)

// fatal is a test that notes the error that ends it.
type fatal struct {
	testing.TB
	err any
}

func (f *fatal) Helper() {}

func (f *fatal) Fatal(args ...any) { f.err = args[0] }

// TestMust ends a test by an error only.
func TestMust(t *testing.T) {
	for _, err := range []error{nil, errors.New("the reason")} {
		f := &fatal{TB: t}
		Must(f, err)
		if (f.err == nil) != (err == nil) {
			t.Errorf("%v for error %v", f.err, err)
		}
	}
}
