package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// dockerImage is an entry of manifest.json, the list that a Docker engine without containerd's image store reads.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// archive writes an OCI image layout and Docker's list; both refer to the same blobs.
func archive(to io.Writer, reference name.Tag, index v1.ImageIndex, images []image) (err error) {
	folder, err := os.MkdirTemp("", "nearside-image")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	err = path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": reference.TagStr(),
		"io.containerd.image.name":          long(reference),
	}))
	if err != nil {
		return err
	}
	list, err := dockerList(reference, images)
	if err != nil {
		return err
	}
	if err := path.WriteFile("manifest.json", list, 0o644); err != nil {
		return err
	}
	return pack(to, os.DirFS(folder))
}

// dockerList returns manifest.json. Its format has no images of several platforms, so each platform has a tag with its
// architecture, and the first one also has the tag itself.
func dockerList(reference name.Tag, images []image) ([]byte, error) {
	var list []dockerImage
	for n, i := range images {
		entry := dockerImage{RepoTags: []string{short(reference) + "-" + i.platform.Architecture}}
		if n == 0 {
			entry.RepoTags = append(entry.RepoTags, short(reference))
		}
		config, err := i.ConfigName()
		if err != nil {
			return nil, err
		}
		entry.Config = blob(config)
		layers, err := i.Layers()
		if err != nil {
			return nil, err
		}
		for _, l := range layers {
			digest, err := l.Digest()
			if err != nil {
				return nil, err
			}
			entry.Layers = append(entry.Layers, blob(digest))
		}
		list = append(list, entry)
	}
	return json.Marshal(list)
}

// blob returns the path of a blob in a layout.
func blob(digest v1.Hash) string { return "blobs/" + digest.Algorithm + "/" + digest.Hex }

// pack writes a folder as a tar, in the order of its names.
func pack(to io.Writer, folder fs.FS) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		f := file{name: filepath.ToSlash(path), mode: 0o644}
		if entry.IsDir() {
			f.name, f.mode = f.name+"/", 0o755
		} else if f.content, err = fs.ReadFile(folder, path); err != nil {
			return err
		}
		return f.write(w)
	})
	return errors.Join(err, w.Close())
}
