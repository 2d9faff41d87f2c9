//go:build !linux

package fastpath

import "net/netip"

var background = make(chan struct{}, maxBackground)

func startBackground(netip.Addr) (end func(), ok bool) {
	select {
	case background <- struct{}{}:
		return func() { <-background }, true
	default:
		return nil, false
	}
}
