package main

import (
	"archive/tar"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// archiveOf writes an archive with images for some platforms, as release-check does, and returns its path.
func archiveOf(t *testing.T, images ...v1.ImageIndex) string {
	t.Helper()
	all := v1.ImageIndex(empty.Index)
	for _, image := range images {
		all = mutate.AppendManifests(all, mutate.IndexAddendum{Add: image})
	}
	folder, path := t.TempDir(), filepath.Join(t.TempDir(), "clusterdns.tar")
	if _, err := layout.Write(folder, all); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(folder)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func indexOf(t *testing.T) v1.ImageIndex {
	t.Helper()
	index, err := random.Index(1000, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestPush pushes an archive to a registry, from which a client gets the same image with all platforms: by its digest, and by the tag only
// after that was pushed.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/nearside"
	index := indexOf(t)
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	r := release{repository: repository, version: "v1.2.3", digest: want.String()}
	archive := archiveOf(t, index)
	for _, r.tag = range []bool{false, true} {
		if err := r.pushArchive(archive); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			name    string
			present bool
		}{{"@" + r.digest, true}, {":v1.2.3", r.tag}} {
			reference, err := name.ParseReference(repository + "/clusterdns" + tc.name)
			if err != nil {
				t.Fatal(err)
			}
			pushed, err := remote.Index(reference)
			if (err == nil) != tc.present {
				t.Fatalf("%s: error %v, want an image: %v", reference, err, tc.present)
			}
			if err != nil {
				continue
			}
			if got, err := pushed.Digest(); err != nil || got != want {
				t.Errorf("%s: digest %v, error %v, want %v", reference, got, err, want)
			}
			if err := validate.Index(pushed); err != nil {
				t.Errorf("%s: %v", reference, err)
			}
		}
	}
}

func TestRepository(t *testing.T) {
	const push = "-push=x.tar"
	for _, tc := range []struct {
		repository, want string
		args             []string
	}{
		{"ghcr.io/nearside-dns/nearside", "", []string{push, "-digest=x"}},
		{"127.0.0.1:5000/nearside", "", []string{push, "-digest=x"}},
		{"localhost/nearside", "", []string{push, "-digest=x"}},
		{"registry:5000/a/b_c/d__e/f--g.h", "", []string{push, "-digest=x"}},
		{"nearside.invalid/nearside", "", []string{"-folder=x"}},
		{"nearside.invalid/nearside", "exists nowhere", []string{push, "-digest=x"}},
		{"invalid:5000/nearside", "exists nowhere", []string{push, "-digest=x"}},
		{"registry.nearside.invalid:5000/nearside", "exists nowhere", []string{push, "-digest=x"}},
		{"ghcr.io/nearside", "flag -digest is missing", []string{push}},
		{"", "invalid repository", []string{"-folder=x"}},
		{"nearside", "invalid repository", []string{"-folder=x"}},
		{"nearside-dns/nearside", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io/", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io/Nearside-DNS/nearside", "invalid repository", []string{"-folder=x"}},
		{"GHCR.io/nearside", "invalid repository", []string{"-folder=x"}},
		{"https://ghcr.io/nearside", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io/nearside/", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io/nearside:v1", "invalid repository", []string{"-folder=x"}},
		{"ghcr.io/near side", "invalid repository", []string{"-folder=x"}},
	} {
		t.Run(tc.repository, func(t *testing.T) {
			_, err := parse(append([]string{"-version=v1.2.3", "-repository=" + tc.repository}, tc.args...))
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPushErrors(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/nearside"
	stopped := httptest.NewServer(nil)
	stopped.Close()
	outside := filepath.Join(t.TempDir(), "outside.tar")
	f, err := os.Create(outside)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../index.json", Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	index := indexOf(t)
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	valid := release{repository: repository, version: "v1.2.3", digest: digest.String()}
	stranded, invalid, different := valid, valid, valid
	stranded.repository = strings.TrimPrefix(stopped.URL, "http://") + "/nearside"
	invalid.version, invalid.tag = "v1 2", true
	different.digest = "sha256:" + strings.Repeat("0", 64)
	for what, tc := range map[string]struct {
		release release
		archive string
		want    string
	}{
		"no archive":               {valid, filepath.Join(t.TempDir(), "clusterdns.tar"), "no such file"},
		"two images":               {valid, archiveOf(t, indexOf(t), indexOf(t)), "2 images, want 1"},
		"another image":            {different, archiveOf(t, index), "has the image " + digest.String() + ", want sha256:000"},
		"a path out of the folder": {valid, outside, "path escapes"},
		"an invalid name":          {invalid, archiveOf(t, index), "valid image name"},
		"no registry":              {stranded, archiveOf(t, index), "connection refused"},
	} {
		t.Run(what, func(t *testing.T) {
			if err := tc.release.pushArchive(tc.archive); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
