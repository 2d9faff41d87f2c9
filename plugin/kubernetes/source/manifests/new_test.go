package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

func TestNewFails(t *testing.T) {
	tests := map[string]struct {
		prepare func(t *testing.T, dir string)
		bounds  bounds
		want    string // with DIR for the directory
	}{
		"no directory": {
			prepare: func(t *testing.T, dir string) {
				kit.Must(t, os.Remove(dir))
			},
			want: "manifests directory DIR: no such file or directory",
		},
		"a file": {
			prepare: func(t *testing.T, dir string) {
				kit.Must(t, os.Remove(dir), os.WriteFile(dir, nil, 0o644))
			},
			want: "manifests directory DIR: not a directory",
		},
		"an object in two files": {
			prepare: func(t *testing.T, dir string) {
				kit.Write(t, dir+"/b.yaml", service("shop", "other", "None")+service("shop", "web", "None"))
				kit.Write(t, dir+"/a.yaml", "\n"+service("shop", "web", "None"))
			},
			want: "DIR/b.yaml:9: Service shop/web: already in DIR/a.yaml:2; delete one of the two",
		},
		"several broken files": {
			prepare: func(t *testing.T, dir string) {
				kit.Write(t, dir+"/b.yaml", "kind: Service")
				kit.Write(t, dir+"/a.yaml", "kind: Node")
			},
			want: "DIR/a.yaml:1: Node: apiVersion: missing; want v1 (the first of 2 broken files)",
		},
		"a link that leads nowhere": {
			prepare: func(t *testing.T, dir string) {
				kit.Must(t, os.Symlink("gone", filepath.Join(dir, "a.yaml")))
			},
			want: "DIR/a.yaml: the link cannot be followed: no such file or directory",
		},
		"too many files": {
			prepare: func(t *testing.T, dir string) {
				for i := range 5 {
					kit.Write(t, dir+"/"+fmt.Sprintf("%d.yaml", i), "")
				}
			},
			bounds: bounds{files: 4, fileBytes: 1 << 20, allBytes: 1 << 20},
			want:   "manifests directory DIR: more than 4 manifests and directories",
		},
		"a file that is too large": {
			prepare: func(t *testing.T, dir string) { kit.Write(t, dir+"/a.yaml", strings.Repeat("#", 1<<20+1)) },
			bounds:  bounds{files: 4, fileBytes: 1 << 20, allBytes: 1 << 30},
			want:    "DIR/a.yaml: larger than 1 MiB; split it",
		},
		"too much in all": {
			prepare: func(t *testing.T, dir string) {
				kit.Write(t, dir+"/a.yaml", strings.Repeat("#", 1<<20))
				kit.Write(t, dir+"/b.yaml", strings.Repeat("#", 1<<20))
			},
			bounds: bounds{files: 4, fileBytes: 1 << 20, allBytes: 1 << 20},
			want:   "manifests directory DIR: more than 1 MiB of manifests",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "manifests")
			kit.Must(t, os.Mkdir(dir, 0o755))
			test.prepare(t, dir)
			s, err := newSource(dir, source.Options{})
			kit.Must(t, err)
			if test.bounds != (bounds{}) {
				s.bounds = test.bounds
			}
			err = s.begin()
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
