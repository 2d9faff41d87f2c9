package block

import (
	"os"
	"strings"
	"testing"
)

// TestReadme compares the known plugins with those that the README of fastpath names.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("../../fastpath/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for name := range plugins {
		if !strings.Contains(string(text), "*"+name+"*") {
			t.Errorf("the README does not name %s", name)
		}
	}
}
