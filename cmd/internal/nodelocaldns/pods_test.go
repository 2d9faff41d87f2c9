package nodelocaldns

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
)

// TestPodsRefused has directives that cannot be told which node this is.
func TestPodsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"brace on another line":  {". {\n    whoami\n    autopath @nodelocal\n    {\n    }\n}\n", "f:3 - autopath has its brace on another line"},
		"words of several lines": {". {\n    autopath \"a\nb\" @nodelocal\n}\n", "autopath stands on a line together with something"},
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			v.node = "node-a"
			if _, err := v.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			v.node = ""
			if out, err := v.render(daemon.Corefile{Name: "f", Text: []byte(tc.text)}); err != nil || string(out.Text) != tc.text {
				t.Errorf("without a name: error %v, rendered was\n%s", err, out.Text)
			}
		})
	}
}

// TestPodsOfThisNode: who this node is comes from the flag and the environment, as for forward.
func TestPodsOfThisNode(t *testing.T) {
	const text = ". {\n    autopath cluster.local @nodelocal\n}\n"
	for name, tc := range map[string]struct {
		environ map[string]string
		args    []string
		want    string
	}{
		"flag":        {nil, []string{"-node-name", "node-a"}, "@nodelocal {\n        node node-a\n    }\n"},
		"environment": {map[string]string{"NODE_NAME": "node-b.example"}, nil, "@nodelocal {\n        node node-b.example\n    }\n"},
		"nobody":      {nil, nil, "@nodelocal\n}\n"},
		"wrong":       {map[string]string{"NODE_NAME": "-"}, nil, "@nodelocal\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			n := node(t, tc.environ, tc.args...)
			read := func(string) (daemon.Corefile, error) { return daemon.Corefile{Name: "f", Text: []byte(text)}, nil }
			if got, err := n.Source("stdin", read); err != nil || !bytes.Contains(got.Text, []byte(tc.want)) {
				t.Errorf("error %v, rendered was\n%s", err, got.Text)
			}
		})
	}
}
