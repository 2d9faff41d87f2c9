package nodelocal

import "testing"

// TestReady has the state of the process with two nodes, one of which does not answer itself.
func TestReady(t *testing.T) {
	one, other := newNode(config{}), newNode(config{})
	for _, tc := range []struct {
		name       string
		running    []*node
		unanswered int32
		want       bool
	}{
		{"no directive", nil, 0, true},
		{"all answer", []*node{one, other}, 0, true},
		{"an address without an answer", []*node{one, other}, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := nodes.running
			t.Cleanup(func() { nodes.running = before })
			nodes.running = tc.running
			other.unanswered.Store(tc.unanswered)
			if got := Ready(); got != tc.want {
				t.Errorf("ready %v", got)
			}
		})
	}
}
