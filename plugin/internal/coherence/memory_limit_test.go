package coherence

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestMemoryLimit reads the memory limit of the container, and derives the limit of subscriptions from it.
func TestMemoryLimit(t *testing.T) {
	const v1, v2 = "memory/memory.limit_in_bytes", "memory.max"
	for name, tt := range map[string]struct {
		files map[string]string
		gc    int64 // GOMEMLIMIT, 0 without
		want  int
	}{
		"none":                     {want: maxSubscriptions},
		"deployed":                 {files: map[string]string{v2: "220200960\n"}, want: 1_201_493},
		"version 1":                {files: map[string]string{v1: "220200960\n"}, want: 1_201_493},
		"unlimited":                {files: map[string]string{v2: "max\n"}, want: maxSubscriptions},
		"unlimited, version 1":     {files: map[string]string{v1: "9223372036854771712\n"}, want: maxSubscriptions},
		"large":                    {files: map[string]string{v2: "107374182400\n"}, want: maxSubscriptions},
		"small":                    {files: map[string]string{v2: "33554432\n"}, want: minSubscriptions},
		"of the garbage collector": {files: map[string]string{v2: "max\n"}, gc: 1 << 29, want: 4_500_138},
		"the lower one":            {files: map[string]string{v2: "400000000\n"}, gc: 1 << 29, want: 3_074_400},
		"malformed":                {files: map[string]string{v2: "\n"}, want: maxSubscriptions},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range tt.files {
				if err := os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			gc := tt.gc
			if gc == 0 {
				gc = math.MaxInt64
			}
			if got := subscriptionsIn(memoryLimit(root, gc)); got != tt.want {
				t.Errorf("%d subscriptions, want %d", got, tt.want)
			}
		})
	}
}
