package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pushArchive pushes the image of an archive that was made before, with all platforms, and prints its name. An image with another digest
// is not pushed. The credentials are those of Docker's configuration.
func (r release) pushArchive(path string) (err error) {
	folder, err := os.MkdirTemp("", "nearside-push-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := unpack(path, folder); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	program := filepath.Base(path[:len(path)-len(filepath.Ext(path))])
	text := r.repository + "/" + program + "@" + r.digest
	if r.tag {
		text = r.repository + "/" + program + ":" + r.version
	}
	reference, err := name.ParseReference(text)
	if err != nil {
		return fmt.Errorf("flags -repository, -version and -digest do not form a valid image name: %w", err)
	}
	index, digest, err := onlyIndex(folder)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if digest.String() != r.digest {
		return fmt.Errorf("%s has the image %s, want %s", path, digest, r.digest)
	}
	if err := remote.WriteIndex(reference, index, remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return err
	}
	fmt.Println(reference)
	return nil
}

// onlyIndex returns the image of a folder with an OCI layout, and its digest.
func onlyIndex(folder string) (index v1.ImageIndex, digest v1.Hash, err error) {
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, digest, err
	}
	list, err := all.IndexManifest()
	if err != nil {
		return nil, digest, err
	}
	if len(list.Manifests) != 1 {
		return nil, digest, fmt.Errorf("%d images, want 1", len(list.Manifests))
	}
	digest = list.Manifests[0].Digest
	index, err = all.ImageIndex(digest)
	return index, digest, err
}

// unpack writes the files of an archive into a folder. Paths that leave the folder are errors.
func unpack(path, folder string) (err error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	root, err := os.OpenRoot(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := root.MkdirAll(filepath.Dir(header.Name), 0o755); err != nil {
			return err
		}
		file, err := root.Create(header.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, r)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
}
