package docs

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

var (
	fuzzRow    = regexp.MustCompile("(?m)^\\| [^|]+ \\| `([^`]+)` \\| ((?:Fuzz\\w+(?:, )?)+) \\|$")
	fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
)

// listedTargets returns the fuzz targets of a page's table, as PACKAGE TARGET.
func listedTargets(text string) (all []string) {
	for _, row := range fuzzRow.FindAllStringSubmatch(text, -1) {
		for name := range strings.SplitSeq(row[2], ", ") {
			all = append(all, row[1]+" "+name)
		}
	}
	slices.Sort(all)
	return all
}

// declaredTargets returns the fuzz targets of a module.
func declaredTargets(t *testing.T, module fs.FS) (all []string) {
	t.Helper()
	err := fs.WalkDir(module, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed by a test that runs at the same time
			return nil
		case err != nil:
			return err
		case d.IsDir() && (file == "bin" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != "."):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		text, err := fs.ReadFile(module, file)
		if err != nil {
			return err
		}
		for _, found := range fuzzTarget.FindAllSubmatch(text, -1) {
			all = append(all, path.Dir(file)+" "+string(found[1]))
		}
		return nil
	})
	kit.Must(t, err)
	slices.Sort(all)
	return all
}

// TestFuzzTargets checks that SECURITY.md lists every fuzz target, and no others.
func TestFuzzTargets(t *testing.T) {
	text := documents(t)["SECURITY.md"]
	listed, declared := listedTargets(text), declaredTargets(t, os.DirFS(root))
	for _, target := range declared {
		if !slices.Contains(listed, target) {
			t.Errorf("SECURITY.md does not list %s", target)
		}
	}
	for _, target := range listed {
		if !slices.Contains(declared, target) {
			t.Errorf("there is no target %s", target)
		}
	}
	t.Run("can fail", func(t *testing.T) {
		got := listedTargets("| a | `x/y` | FuzzB, FuzzA |\n| a | x/y | FuzzC |\n| a | `x/y` | fuzz targets |\n")
		if want := []string{"x/y FuzzA", "x/y FuzzB"}; !slices.Equal(got, want) {
			t.Errorf("targets %q, want %q", got, want)
		}
	})
}
