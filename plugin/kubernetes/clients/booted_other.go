//go:build !linux

package clients

import "time"

// booted returns zero: the boot time is unknown on this system.
func booted() time.Time { return time.Time{} }
