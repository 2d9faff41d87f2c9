// Package namespace has the old names of functions of package netns, for the tests of plugin/fastpath.
package namespace

import "github.com/nearside-dns/nearside/test/netns"

// Functions of netns.
var (
	Enter  = netns.Enter
	Inside = netns.Inside
	Run    = netns.Run
)
