// Package property runs random tests with seeds. Input is the seeds in a test's source and the environment variable
// NEARSIDE_SEED; each seed is a subtest, and one that fails logs the command that repeats it. make properties runs all
// random tests with new seeds. The package imports only the standard library, so that the tests of all packages can
// import it.
package property

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// Variable is the environment variable that replaces the seeds of all random tests. "SEED" is that seed alone; "SEED.." is
// the number of seeds in the test's source, from SEED.
const Variable = "NEARSIDE_SEED"

// Fixed reports whether tests run with the seeds in their source. Tests assert the coverage of the random cases with these
// seeds only.
func Fixed() bool { return os.Getenv(Variable) == "" }

// Seeds calls check in a subtest for each of n seeds from first, or for the seeds of the environment variable. It stops at
// the first failure.
func Seeds(t *testing.T, first, n uint64, check func(t *testing.T, seed uint64)) {
	t.Helper()
	for _, seed := range List(t, first, n) {
		if !t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("to repeat it: %s", command(t, seed))
				}
			})
			check(t, seed)
		}) {
			return
		}
	}
}

// List returns the seeds that Seeds uses.
func List(t *testing.T, first, n uint64) []uint64 {
	t.Helper()
	first, n, err := choose(os.Getenv(Variable), first, n)
	kit.Must(t, err)
	all := make([]uint64, n)
	for i := range all {
		all[i] = first + uint64(i)
	}
	return all
}

// choose returns the first seed and the number of seeds for those of the source and the value of the variable.
func choose(value string, first, n uint64) (uint64, uint64, error) {
	if value == "" {
		return first, n, nil
	}
	number, several := strings.CutSuffix(value, "..")
	seed, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("invalid %s %q: want SEED or SEED..", Variable, value)
	}
	if several {
		return seed, n, nil
	}
	return seed, 1, nil
}

// command returns the shell command that runs the subtest of a seed alone.
func command(t *testing.T, seed uint64) string {
	t.Helper()
	return fmt.Sprintf("%s=%d go test -count=1 -run '%s' ./%s", Variable, seed, pattern(t.Name()), folder(t))
}

// pattern returns an argument for -run that matches one subtest.
func pattern(name string) string {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + strings.ReplaceAll(regexp.QuoteMeta(part), "'", ".") + "$"
	}
	return strings.Join(parts, "/")
}

// folder returns the folder of the package under test, from the root of the module.
func folder(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	kit.Must(t, err)
	root := kit.Module(t)
	if root == "" {
		return "."
	}
	rel, err := filepath.Rel(root, wd)
	kit.Must(t, err)
	return filepath.ToSlash(rel)
}
