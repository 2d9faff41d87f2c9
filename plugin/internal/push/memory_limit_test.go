package push

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// TestMemoryLimit derives the limit of subscriptions from the memory limit of the container and that of the environment.
func TestMemoryLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		container uint64 // 0 without a limit
		gc        int64  // GOMEMLIMIT, 0 without
		want      int
	}{
		"none":                     {want: maxSubscriptions},
		"deployed":                 {container: 220200960, want: 1_201_493},
		"unlimited, version 1":     {container: 9223372036854771712, want: maxSubscriptions},
		"more than an int64":       {container: math.MaxUint64, want: maxSubscriptions},
		"large":                    {container: 107374182400, want: maxSubscriptions},
		"small":                    {container: 33554432, want: minSubscriptions},
		"of the garbage collector": {gc: 1 << 29, want: 4_500_138},
		"the lower one":            {container: 400000000, gc: 1 << 29, want: 3_074_400},
		"the lower one of Go":      {container: 1 << 30, gc: 1 << 29, want: 4_500_138},
	} {
		t.Run(name, func(t *testing.T) {
			before := debug.SetMemoryLimit(1 << 28) // as the program sets it from the container's
			defer debug.SetMemoryLimit(before)
			if tt.gc > 0 {
				t.Setenv("GOMEMLIMIT", "set")
				debug.SetMemoryLimit(tt.gc)
			}
			provider := memlimit.Limit(tt.container)
			if tt.container == 0 {
				provider = func() (uint64, error) { return 0, memlimit.ErrNoLimit }
			}
			if got := subscriptionsIn(memoryLimit(provider)); got != tt.want {
				t.Errorf("%d subscriptions, want %d", got, tt.want)
			}
		})
	}
}
