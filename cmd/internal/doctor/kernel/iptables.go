//go:build linux

package kernel

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// patience is how much longer than a context its programs are waited for: they are ended with it, and
// what they were is worth saying.
const patience = time.Second

// Predecessors returns the iptables rules of node-local-dns and of nodecache's iptables backend. With
// an error it returns what it has found all the same. No module is loaded for it.
func Predecessors(ctx context.Context) ([]rules.PredecessorRule, error) {
	return foundWithin(ctx, "read rules of iptables", func() ([]rules.PredecessorRule, error) {
		return rules.Predecessors(ctx, nil)
	})
}

// RemovePredecessor removes one such rule. It is no error if it is gone.
func RemovePredecessor(ctx context.Context, r rules.PredecessorRule) error {
	_, err := withPatience(ctx, "remove "+r.String(), func() (int, error) {
		return rules.RemovePredecessors(ctx, []rules.PredecessorRule{r})
	})
	return err
}

// foundWithin is withPatience for f that returns what it has found along with an error: that error stays as it is, and
// what names only the error of a call that did not end.
func foundWithin[T any](ctx context.Context, what string, f func() ([]T, error)) ([]T, error) {
	var problem error
	found, err := withPatience(ctx, what, func() (all []T, _ error) {
		all, problem = f()
		return all, nil
	})
	if err != nil {
		return nil, err // f may be running: problem is not read
	}
	return found, problem
}

// withPatience is within for what ends with the context by itself, unless the kernel hangs.
func withPatience[T any](ctx context.Context, what string, f func() (T, error)) (T, error) {
	later := context.WithoutCancel(ctx)
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		later, cancel = context.WithDeadline(later, end.Add(patience))
		defer cancel()
	}
	return within(later, what, f)
}

// Legacy is what the old iptables holds.
type Legacy struct {
	// Services says that kube-proxy's chain KUBE-SERVICES is there.
	Services bool
}

// LegacyRules reads the old iptables, as far as procNet says that it has tables. With an error it
// returns the rest.
func LegacyRules(ctx context.Context, procNet string) (Legacy, error) {
	var l Legacy
	all, problem := rules.OpenLegacy(ctx, procNet)
	for _, old := range all {
		for _, table := range old.Tables {
			text, err := old.List(ctx, table)
			problem = errors.Join(problem, err)
			l.read(text)
		}
	}
	return l, problem
}

// read takes what "iptables -S" printed of a table.
func (l *Legacy) read(text string) {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == "-N" && words[1] == "KUBE-SERVICES" {
			l.Services = true
		}
	}
}
