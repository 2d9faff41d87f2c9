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

// TestPush pushes an archive to a registry, from which a client gets the same image with all platforms.
func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(t.Output(), "", 0))))
	defer server.Close()
	repository := strings.TrimPrefix(server.URL, "http://") + "/nearside"
	index := indexOf(t)
	want, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if err := (release{repository: repository, version: "v1.2.3"}).pushArchive(archiveOf(t, index)); err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(repository + "/clusterdns:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(reference)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := pushed.Digest(); err != nil || got != want {
		t.Errorf("digest %v, error %v, want %v", got, err, want)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
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
	for what, tc := range map[string]struct {
		release release
		archive string
		want    string
	}{
		"no archive":               {release{repository: repository, version: "v1.2.3"}, filepath.Join(t.TempDir(), "clusterdns.tar"), "no such file"},
		"two images":               {release{repository: repository, version: "v1.2.3"}, archiveOf(t, indexOf(t), indexOf(t)), "2 images, want 1"},
		"a path out of the folder": {release{repository: repository, version: "v1.2.3"}, outside, "path escapes"},
		"an invalid name":          {release{repository: repository, version: "v1 2"}, archiveOf(t, indexOf(t)), "valid image name"},
		"no registry": {release{repository: strings.TrimPrefix(stopped.URL, "http://") + "/nearside", version: "v1.2.3"},
			archiveOf(t, indexOf(t)), "connection refused"},
	} {
		t.Run(what, func(t *testing.T) {
			if err := tc.release.pushArchive(tc.archive); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
