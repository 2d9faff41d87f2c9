package wirechain

import (
	"context"
	"testing"

	"github.com/miekg/dns"
)

// TestResult: a plugin such as dns64 queries in the context of the client's query, whose result is not that of its own query.
func TestResult(t *testing.T) {
	query := new(dns.Msg).SetQuestion("a.example.", dns.TypeAAAA)
	ctx := WithResult(context.Background(), query, "result")
	if got := Result(ctx, query); got != "result" {
		t.Errorf("of the query: %v", got)
	}
	if got := Result(ctx, query.Copy()); got != nil {
		t.Errorf("of another query: %v, want none", got)
	}
	if got := Result(context.Background(), query); got != nil {
		t.Errorf("without a result: %v", got)
	}
}
