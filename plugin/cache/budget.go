package cache

import (
	"sync/atomic"

	"github.com/coredns/caddy"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// budget is the budget of the store in one configuration.
type budget struct {
	bytes int64 // 0 if not set
	at    corefile.Position
}

// budgetKey is the key of the budget in the storage of a caddy instance.
type budgetKey struct{}

func budgetOf(c *caddy.Controller) *budget {
	b, ok := c.Get(budgetKey{}).(*budget)
	if !ok {
		b = new(budget)
		c.Set(budgetKey{}, b)
	}
	return b
}

// set sets the budget of a block, 0 for none. Blocks with a budget must agree.
func (b *budget) set(bytes int64, at corefile.Position) error {
	if bytes == 0 {
		return nil
	}
	if b.bytes != 0 && b.bytes != bytes {
		return at.Errorf("budget: %d bytes here, but %d bytes at %s:%d: the process has one budget", bytes, b.bytes, b.at.File, b.at.Line)
	}
	b.bytes, b.at = bytes, at
	return nil
}

// current is the budget of the last configuration that was started.
var current atomic.Pointer[budget]

// apply sets the budget of the store.
func (b *budget) apply() {
	current.Store(b)
	bytes := b.bytes
	if bytes == 0 {
		bytes = store.DefaultBudget
	}
	store.Shared.SetBudget(bytes)
}

// release restores the default, unless another configuration has set its budget.
func (b *budget) release() {
	if current.CompareAndSwap(b, nil) {
		store.Shared.SetBudget(store.DefaultBudget)
	}
}
