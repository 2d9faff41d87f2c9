// Package image reads the images of `make image` and of deploy/image/Dockerfile as a container runtime and the reader of
// a bill of materials would. Input is trees of the repository; output is the errors of the images. It shares no code
// with deploy/image, and may not import it.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// entry is a file of a tar.
type entry struct {
	header  tar.Header
	content []byte
}

// descriptor, manifest and config have the fields of the OCI image specification that are read here.
type descriptor struct {
	MediaType    string
	Digest       string
	Size         int64
	Platform     *platform
	ArtifactType string
	Annotations  map[string]string
}

type platform struct{ OS, Architecture string }

type manifest struct {
	SchemaVersion int
	MediaType     string
	Config        descriptor
	Layers        []descriptor
	Manifests     []descriptor // of an index
	Annotations   map[string]string
}

type config struct {
	platform
	Created string
	Config  struct {
		Entrypoint, Cmd, Env []string
		User, WorkingDir     string
		ExposedPorts         map[string]struct{}
		Labels               map[string]string
	}
	RootFS struct {
		Type    string
		DiffIDs []string `json:"diff_ids"`
	}
	History []struct{ Created string }
}

// archive is one that was read by its index.
type archive struct {
	index  descriptor // of the image index
	list   manifest   // the image index
	images []image
	docker []dockerImage
}

// image is that of one platform.
type image struct {
	platform platform
	manifest manifest
	config   config
	files    []entry // of all layers
}

// dockerImage is an entry of Docker's list.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func readTar(r io.Reader) (all []entry, err error) {
	for files := tar.NewReader(r); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(files)
		if err != nil {
			return nil, err
		}
		all = append(all, entry{*header, content})
	}
}

// reader follows an archive's references and records which blobs were read.
type reader struct {
	files map[string][]byte // by name
	asked map[string]bool
}

// openArchive reads an archive from its index down. It fails if a blob differs from its descriptor, if nothing refers to
// a blob, and if Docker's list names other blobs.
func openArchive(entries []entry) (a archive, err error) {
	r := reader{files: map[string][]byte{}, asked: map[string]bool{}}
	for _, e := range entries {
		if e.header.Typeflag == tar.TypeReg {
			r.files[e.header.Name] = e.content
		}
	}
	if got := string(bytes.Join(bytes.Fields(r.files["oci-layout"]), nil)); got != `{"imageLayoutVersion":"1.0.0"}` {
		return a, fmt.Errorf("oci-layout %q", got)
	}
	var top manifest
	if err := json.Unmarshal(r.files["index.json"], &top); err != nil {
		return a, fmt.Errorf("index.json: %w", err)
	}
	if len(top.Manifests) != 1 {
		return a, fmt.Errorf("index.json has %d manifests, want 1", len(top.Manifests))
	}
	a.index = top.Manifests[0]
	if err := r.decode(a.index, &a.list); err != nil {
		return a, err
	}
	for _, d := range a.list.Manifests {
		i, err := r.image(d)
		if err != nil {
			return a, err
		}
		a.images = append(a.images, i)
	}
	if err := json.Unmarshal(r.files["manifest.json"], &a.docker); err != nil {
		return a, fmt.Errorf("manifest.json: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		if strings.HasPrefix(name, "blobs/") && !r.asked[name] {
			return a, fmt.Errorf("nothing refers to %s", name)
		}
	}
	return a, a.checkDocker()
}

// blob returns the content that a descriptor stands for.
func (r reader) blob(d descriptor) ([]byte, error) {
	name := blobPath(d.Digest)
	content, found := r.files[name]
	if !found {
		return nil, fmt.Errorf("%s is missing", name)
	}
	r.asked[name] = true
	if got := digest(content); got != d.Digest || int64(len(content)) != d.Size {
		return nil, fmt.Errorf("%s of %d bytes has %s and %d bytes", d.Digest, d.Size, got, len(content))
	}
	return content, nil
}

func (r reader) decode(d descriptor, into any) error {
	content, err := r.blob(d)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: %w", d.Digest, err)
	}
	return nil
}

func (r reader) image(d descriptor) (i image, err error) {
	if d.Platform == nil {
		return i, fmt.Errorf("%s has no platform", d.Digest)
	}
	i.platform = *d.Platform
	if err := r.decode(d, &i.manifest); err != nil {
		return i, err
	}
	if err := r.decode(i.manifest.Config, &i.config); err != nil {
		return i, err
	}
	if len(i.config.RootFS.DiffIDs) != len(i.manifest.Layers) || len(i.config.History) != len(i.manifest.Layers) {
		return i, fmt.Errorf("%d layers, %d in the config, %d in the history", len(i.manifest.Layers), len(i.config.RootFS.DiffIDs), len(i.config.History))
	}
	for n, l := range i.manifest.Layers {
		compressed, err := r.blob(l)
		if err != nil {
			return i, err
		}
		unpacked, err := gzip.NewReader(bytes.NewReader(compressed))
		if err != nil {
			return i, fmt.Errorf("%s: %w", l.Digest, err)
		}
		content, err := io.ReadAll(unpacked)
		if err != nil {
			return i, fmt.Errorf("%s: %w", l.Digest, err)
		}
		if got := digest(content); got != i.config.RootFS.DiffIDs[n] {
			return i, fmt.Errorf("layer %s unpacks to %s, the config says %s", l.Digest, got, i.config.RootFS.DiffIDs[n])
		}
		files, err := readTar(bytes.NewReader(content))
		if err != nil {
			return i, fmt.Errorf("%s: %w", l.Digest, err)
		}
		i.files = append(i.files, files...)
	}
	return i, nil
}

// checkDocker returns an error unless Docker's list has each image with the same blobs.
func (a archive) checkDocker() error {
	if len(a.docker) != len(a.images) {
		return fmt.Errorf("manifest.json has %d images, the index %d", len(a.docker), len(a.images))
	}
	for n, i := range a.images {
		want := []string{blobPath(i.manifest.Config.Digest)}
		for _, l := range i.manifest.Layers {
			want = append(want, blobPath(l.Digest))
		}
		if got := append([]string{a.docker[n].Config}, a.docker[n].Layers...); !slices.Equal(got, want) {
			return fmt.Errorf("manifest.json has %q for %v, want %q", got, i.platform, want)
		}
	}
	return nil
}

// clocks returns the entries of a tar with a time or an owner, or out of order.
func clocks(entries []entry) (found []string) {
	for n, e := range entries {
		h := e.header
		if h.ModTime.Unix() != 0 || !h.AccessTime.IsZero() || !h.ChangeTime.IsZero() {
			found = append(found, h.Name+" has a time")
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			found = append(found, h.Name+" has an owner")
		}
		if n > 0 && strings.TrimSuffix(h.Name, "/") <= strings.TrimSuffix(entries[n-1].header.Name, "/") {
			found = append(found, h.Name+" is out of order")
		}
	}
	return found
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// blobPath is the path of a blob in a layout.
func blobPath(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }
