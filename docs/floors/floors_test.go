package main

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

const root = "../.."

// upward returns the imports that point to another plugin, or from plugin/internal to a plugin. The shim multicluster
// imports kubernetes.
func upward(imports map[string][]string) (found []string) {
	for path, imported := range imports {
		from, ok := pluginOf(path)
		if !ok {
			continue
		}
		for _, to := range imported {
			plugin, ok := pluginOf(to)
			if !ok || plugin == "internal" || plugin == from || from == "multicluster" && to == "plugin/kubernetes" {
				continue
			}
			found = append(found, path+" imports "+to)
		}
	}
	slices.Sort(found)
	return found
}

// pluginOf returns the plugin that a package belongs to, "internal" for what plugins share.
func pluginOf(path string) (plugin string, ok bool) {
	rest, ok := strings.CutPrefix(path, "plugin/")
	plugin, _, _ = strings.Cut(rest, "/")
	return plugin, ok
}

func TestNoUpwardImports(t *testing.T) {
	imports, err := List(root)
	kit.Must(t, err)
	if found := upward(imports); len(found) > 0 {
		t.Errorf("imports between plugins:\n%s", strings.Join(found, "\n"))
	}
	t.Run("can fail", func(t *testing.T) {
		got := upward(map[string][]string{
			"plugin/cache":               {"plugin/internal/store", "plugin/fastpath"},
			"plugin/multicluster":        {"plugin/kubernetes", "plugin/kubernetes/index"},
			"plugin/kubernetes/clients":  {"plugin/kubernetes/index", "plugin/autopath"},
			"plugin/internal/searchlist": {"plugin/kubernetes/index", "plugin/internal/store"},
			"cmd/nodecache":              {"plugin/cache"},
		})
		want := []string{
			"plugin/cache imports plugin/fastpath",
			"plugin/internal/searchlist imports plugin/kubernetes/index",
			"plugin/kubernetes/clients imports plugin/autopath",
			"plugin/multicluster imports plugin/kubernetes/index",
		}
		if !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	})
}

func TestFloors(t *testing.T) {
	got := Floors(map[string][]string{"a": nil, "b": {"a"}, "c": {"a", "b"}, "d": {"a"}})
	if want := [][]string{{"a"}, {"b", "d"}, {"c"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestCurrent compares the picture with the imports.
func TestCurrent(t *testing.T) {
	imports, err := List(root)
	kit.Must(t, err)
	text := kit.Read(t, filepath.Join(root, picture))
	if text != draw(Floors(imports)) {
		t.Errorf("%s is not current: go run ./docs/floors", picture)
	}
	if draw([][]string{{"plugin/a"}}) == draw([][]string{{"plugin/b"}}) {
		t.Error("pictures of different packages are equal")
	}
}
