//go:build linux

// Package kernel reads from the kernel what nodecache and its predecessors leave on a node:
// interfaces with their addresses, nftables tables, iptables rules; and removes such a thing when it
// is told to. Every function returns when its context ends, even while the kernel or a program does
// not answer. It decides nothing: what is right or wrong is said by its callers.
package kernel

import (
	"context"
	"fmt"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// within calls f and waits for it until ctx ends. A call that the kernel never answers stays behind
// in its goroutine: the programs that use this package end soon after.
func within[T any](ctx context.Context, what string, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := f()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return r.value, fmt.Errorf("%s: %w", what, r.err)
		}
		return r.value, nil
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// attempts is how often a listing is repeated that somebody else's change has cut through.
const attempts = 5

// again lists what nftables holds, and repeats it if the rules were changed meanwhile: the kernel sends
// a listing in parts, and they do not fit together then.
func again[T any](list func() (T, error)) (T, error) {
	return steady(rules.Generation, list)
}

// steady is again, with what tells of changes.
func steady[T any](generation func() (uint32, error), list func() (T, error)) (value T, err error) {
	for range attempts {
		before, unknown := generation()
		if value, err = list(); unknown != nil {
			return value, err
		}
		if after, unknown := generation(); unknown != nil || after == before {
			return value, err
		}
	}
	return value, err
}
