package zipkin

import "testing"

// TestTree has spans in the order in which they end.
func TestTree(t *testing.T) {
	spans := []Span{
		{ID: "4", ParentID: "2", Name: "forward", Timestamp: 3, Tags: map[string]string{"b": "2", "a": "1"}},
		{ID: "3", ParentID: "1", Name: "log", Timestamp: 2},
		{ID: "2", ParentID: "1", Name: "cache", Timestamp: 1},
		{ID: "1", Name: "servedns"},
		{ID: "6", ParentID: "5", Name: "hosts", Timestamp: 9},
	}
	const want = "servedns\n  cache\n    forward a=1 b=2\n  log\nwithout parent 5: hosts\n"
	if got := Tree(spans); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
