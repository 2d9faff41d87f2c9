//go:build linux

package doctor

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

var sample = []Line{
	{"interface nodelocaldns", "dummy, up", OK, ""},
	{"lease 169.254.20.10", "out", Fail, "read its log"},
	{"a", strings.Repeat("x", maxValueWidth+1), Warn, "shorter"},
	{"b", "", Skip, "look elsewhere"},
}

func TestWriteText(t *testing.T) {
	var b bytes.Buffer
	kit.Must(t, writeText(&b, sample))
	want := `VERDICT  CHECK                   VALUE      WHAT TO DO
ok       interface nodelocaldns  dummy, up
fail     lease 169.254.20.10     out        read its log
warn     a                       ` + strings.Repeat("x", maxValueWidth+1) + `  shorter
skip     b                                  look elsewhere

4 checks: 1 ok, 1 warn, 1 fail, 1 skip
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	kit.Must(t, writeJSON(&b, sample))
	var back []Line
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !slices.Equal(back, sample) {
		t.Errorf("got %v, %v", back, err)
	}
	if !strings.HasPrefix(b.String(), "[\n  {\n    \"check\": \"interface nodelocaldns\",\n    \"value\": \"dummy, up\",\n    \"verdict\": \"ok\",\n    \"advice\": \"\"\n  },") {
		t.Errorf("got %s", b.String())
	}
}
