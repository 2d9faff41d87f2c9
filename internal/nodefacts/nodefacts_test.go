package nodefacts

import "testing"

func TestSet(t *testing.T) {
	if got := For("Corefile"); got.Node != "" {
		t.Errorf("before the first Set: node %q", got.Node)
	}
	Set(Facts{Corefile: "Corefile", Node: "a"})
	if got := For("Corefile").Node; got != "a" {
		t.Errorf("node %q, want a", got)
	}
	if got := For("/etc/imported").Node; got != "" {
		t.Errorf("an imported file has node %q", got)
	}
	before := Set(Facts{Corefile: "Corefile", Node: "b"})
	if got := For("Corefile").Node; got != "b" {
		t.Errorf("node %q, want b", got)
	}
	Set(before) // the Corefile was refused
	if got := For("Corefile").Node; got != "a" {
		t.Errorf("after a refused Corefile: node %q, want a", got)
	}
}
