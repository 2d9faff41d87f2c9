package cache

import (
	"sync/atomic"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// budget is what one reading of a Corefile says about the budget of the process.
type budget struct {
	bytes int64 // 0 if nothing is said
	at    corefile.Position
}

// budgetKey is where an instance of caddy has its budget.
type budgetKey struct{}

func budgetOf(c *caddy.Controller) *budget {
	b, ok := c.Get(budgetKey{}).(*budget)
	if !ok {
		b = new(budget)
		c.Set(budgetKey{}, b)
	}
	return b
}

// set takes in what a block says. Another block may say nothing, or the same.
func (b *budget) set(bytes int64, at corefile.Position) error {
	if bytes == 0 {
		return nil
	}
	if b.bytes != 0 && b.bytes != bytes {
		return at.Errorf("budget: it is one for the whole process; %d bytes here, and %d in line %d of %s",
			bytes, b.bytes, b.at.Line, b.at.File)
	}
	b.bytes, b.at = bytes, at
	return nil
}

// current is the budget that is in force: that of the last instance that has started.
var current atomic.Pointer[budget]

func (b *budget) take() {
	current.Store(b)
	bytes := b.bytes
	if bytes == 0 {
		bytes = answers.DefaultBudget
	}
	answers.Shared.SetBudget(bytes)
}

// leave goes back to the default, unless another instance has taken over.
func (b *budget) leave() {
	if current.CompareAndSwap(b, nil) {
		answers.Shared.SetBudget(answers.DefaultBudget)
	}
}
