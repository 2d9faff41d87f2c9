package kit

import "testing"

// TestRequire has a program that exists, and one that does not.
func TestRequire(t *testing.T) {
	t.Setenv(RequireAll, "1")
	if got := reason(t, func(t testing.TB) { Require(t, "go") }); got != "" {
		t.Errorf("go: ended with %q", got)
	}
	if got := reason(t, func(t testing.TB) { Require(t, "go", "no-such-program") }); got != "no-such-program is missing; run test/install.sh" {
		t.Errorf("ended with %q", got)
	}
}
