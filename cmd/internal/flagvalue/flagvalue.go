// Package flagvalue has values of flags that several programs have: a text with a check, ports and addresses with ports.
// It imports nothing of the programs.
package flagvalue

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Text is a flag whose value is checked.
type Text struct {
	Value *string
	Check func(string) error
}

func (t Text) String() string {
	if t.Value == nil { // the zero value, which package flag makes to find defaults
		return ""
	}
	return *t.Value
}

// Set replaces the value, unless the check returns an error.
func (t Text) Set(value string) error {
	err := t.Check(value)
	if err == nil {
		*t.Value = value
	}
	return err
}

// CheckPort checks a port of TCP or UDP.
func CheckPort(text string) error {
	if number, err := strconv.ParseUint(text, 10, 16); err != nil || number == 0 {
		return fmt.Errorf("%q is not a port, 1 to 65535", text)
	}
	return nil
}

// CheckEndpoint checks a host, which may be empty, and a port. An empty text is valid.
func CheckEndpoint(text string) error {
	if text == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' }) {
		return errors.New("want an address and a port, such as 0.0.0.0:9353 or [::]:9353")
	}
	return CheckPort(port)
}
