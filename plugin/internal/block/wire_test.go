package block

import (
	"context"
	"testing"

	"github.com/miekg/dns"
)

// TestWireResult: a plugin such as dns64 queries in the context of the client's query, whose result is not that of its own query.
func TestWireResult(t *testing.T) {
	query := new(dns.Msg).SetQuestion("a.example.", dns.TypeAAAA)
	ctx := WithWireResult(context.Background(), query, "result")
	if got := WireResult(ctx, query); got != "result" {
		t.Errorf("of the query: %v", got)
	}
	if got := WireResult(ctx, query.Copy()); got != nil {
		t.Errorf("of another query: %v, want none", got)
	}
	if got := WireResult(context.Background(), query); got != nil {
		t.Errorf("without a result: %v", got)
	}
}
