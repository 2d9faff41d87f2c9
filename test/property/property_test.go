package property

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		value    string
		first, n uint64
		err      string
	}{
		{"", 7, 3, ""},
		{"18446744073709551615", 18446744073709551615, 1, ""},
		{"42..", 42, 3, ""},
		{"x", 0, 0, `invalid NEARSIDE_SEED "x": want SEED or SEED..`},
		{"..", 0, 0, `invalid NEARSIDE_SEED "..": want SEED or SEED..`},
		{"-1", 0, 0, `invalid NEARSIDE_SEED "-1": want SEED or SEED..`},
	} {
		t.Run(c.value, func(t *testing.T) {
			first, n, err := choose(c.value, 7, 3)
			if first != c.first || n != c.n || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("%d, %d, %v; want %d, %d, %s", first, n, err, c.first, c.n, c.err)
			}
		})
	}
}

// asChild is set where TestSeeds runs this program again.
const asChild = "NEARSIDE_PROPERTY_TEST"

// TestFailing fails at seeds that end in 5, in the program that TestSeeds runs.
func TestFailing(t *testing.T) {
	if os.Getenv(asChild) == "" {
		t.Skip("run by TestSeeds")
	}
	t.Run("a (case)", func(t *testing.T) {
		Seeds(t, 3, 4, func(t *testing.T, seed uint64) {
			t.Logf("ran %d", seed)
			if seed%10 == 5 {
				t.Fatal("on purpose")
			}
		})
	})
}

// TestSeeds runs a test that fails at one seed: it logs the command that repeats it, and that command fails, too.
func TestSeeds(t *testing.T) {
	run := func(variable, pattern string) (out string, failed bool) {
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", pattern)
		cmd.Env = append(os.Environ(), asChild+"=1", Variable+"="+variable)
		text, err := cmd.CombinedOutput()
		return string(text), err != nil
	}
	ran := func(out string) (seeds []string) {
		for line := range strings.Lines(out) {
			if _, seed, ok := strings.Cut(line, ": ran "); ok {
				seeds = append(seeds, strings.TrimSpace(seed))
			}
		}
		return seeds
	}
	const subtests = `^TestFailing$/^a_\(case\)$/^seed=`
	for _, c := range []struct {
		variable string
		ran      []string
		repeat   string
	}{
		{"", []string{"3", "4", "5"}, "NEARSIDE_SEED=5 go test -count=1 -run '" + subtests + "5$' ./test/property\n"},
		{"12..", []string{"12", "13", "14", "15"}, "NEARSIDE_SEED=15 go test -count=1 -run '" + subtests + "15$' ./test/property\n"},
		{"20..", []string{"20", "21", "22", "23"}, ""},
		{"25", []string{"25"}, "NEARSIDE_SEED=25 go test -count=1 -run '" + subtests + "25$' ./test/property\n"},
	} {
		t.Run(c.variable, func(t *testing.T) {
			out, failed := run(c.variable, "^TestFailing$")
			if !slices.Equal(ran(out), c.ran) || failed != (c.repeat != "") || !strings.Contains(out, c.repeat) {
				t.Errorf("ran %q, want %q and %q in\n%s", ran(out), c.ran, c.repeat, out)
			}
		})
	}
	if out, failed := run("5", subtests+"5$"); !failed || !slices.Equal(ran(out), []string{"5"}) {
		t.Errorf("repeated:\n%s", out)
	}
}
