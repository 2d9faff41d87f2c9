//go:build linux

// Package kernel reads from the kernel what nodecache and its predecessors leave on a node:
// interfaces with their addresses, nftables tables, iptables rules; and removes such a thing when it
// is told to. Every function returns when its context ends, even while the kernel or a program does
// not answer. It decides nothing: what is right or wrong is said by its callers.
package kernel

import (
	"context"
	"fmt"
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
