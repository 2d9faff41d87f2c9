package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// imageFiles are the files of a program's image in a release.
var imageFiles = []string{".tar", ".sbom.json"}

// build empties the folder of the release, and makes its files there, but for those that depend on more than the commit.
func (r *release) build(ctx context.Context) error {
	if err := os.RemoveAll(r.folder); err != nil {
		return err
	}
	return r.makeFiles(ctx, "tree")
}

// rebuild makes the files again in other folders, without the cache of the first build, and compares them.
func (r *release) rebuild(ctx context.Context) error {
	place, err := os.MkdirTemp("", "nearside-rebuild-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(place) }()
	again := *r
	again.folder = filepath.Join(place, "files")
	again.environment = []string{"GOCACHE=" + filepath.Join(place, "cache"), "TZ=Pacific/Auckland"}
	if err := again.makeFiles(ctx, "another/tree"); err != nil {
		return err
	}
	return compareFolders(r.folder, again.folder)
}

// makeFiles makes the files that depend only on the commit, the toolchain and the settings, from a clone, which has no files that git
// ignores. The clone is the tree in a temporary folder.
func (r *release) makeFiles(ctx context.Context, tree string) error {
	place, err := os.MkdirTemp("", "nearside-build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(place) }()
	r.tree = filepath.Join(place, tree)
	if _, err := r.output(ctx, "git", "clone", "--quiet", "--no-hardlinks", r.root, r.tree); err != nil {
		return err
	}
	if _, err := r.output(ctx, "git", "-C", r.tree, "checkout", "--quiet", "--detach", r.commit); err != nil {
		return err
	}
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	for _, do := range []func(context.Context) error{r.makeImages, r.writeProvenance, r.packageChart, r.writeManPages, r.writeChanges} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

// makeImages runs `make image`.
func (r *release) makeImages(ctx context.Context) error {
	made, err := os.MkdirTemp(filepath.Dir(r.folder), ".images-") // on the same file system as the release
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(made) }()
	_, err = r.output(ctx, "make", "-C", r.tree, "image", "IMAGES="+made, "REPOSITORY="+r.repository, "VERSION="+r.version,
		"REVISION="+r.commit, "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.created, 10), "GOTOOLCHAIN="+r.toolchain)
	if err != nil {
		return err
	}
	for _, p := range programs {
		for _, suffix := range imageFiles {
			if err := os.Rename(filepath.Join(made, p+suffix), filepath.Join(r.folder, p+suffix)); err != nil {
				return err
			}
		}
	}
	return nil
}

// sumsOf returns the SHA-256 of each file of a folder, by the file's name.
func sumsOf(folder string) (map[string]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	sums := map[string]string{}
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(content))
	}
	return sums, nil
}

// errDiffers is the error of a build that another one does not repeat.
var errDiffers = errors.New("two builds differ")

// compareFolders compares the files of two folders, by name and content.
func compareFolders(one, other string) error {
	a, err := sumsOf(one)
	if err != nil {
		return err
	}
	b, err := sumsOf(other)
	if err != nil {
		return err
	}
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a[name] != b[name] {
			return fmt.Errorf("%s: %w: sha256 %q and %q", name, errDiffers, a[name], b[name])
		}
	}
	return nil
}

// bill has the fields of a bill of materials that name an image.
type bill struct {
	Metadata struct {
		Component struct {
			PURL   string `json:"purl"`
			Hashes []struct {
				Algorithm string `json:"alg"`
				Content   string `json:"content"`
			} `json:"hashes"`
		} `json:"component"`
	} `json:"metadata"`
}

// imageOf returns the package URL and the digest of a program's image, from its bill of materials.
func (r *release) imageOf(program string) (purl, digest string, err error) {
	text, err := os.ReadFile(filepath.Join(r.folder, program+".sbom.json"))
	if err != nil {
		return "", "", err
	}
	var b bill
	if err := json.Unmarshal(text, &b); err != nil {
		return "", "", fmt.Errorf("%s.sbom.json: %w", program, err)
	}
	for _, h := range b.Metadata.Component.Hashes {
		if h.Algorithm == "SHA-256" {
			return b.Metadata.Component.PURL, "sha256:" + h.Content, nil
		}
	}
	return "", "", fmt.Errorf("%s.sbom.json has no SHA-256 of the image", program)
}

// writeChanges writes the changelog's entries of the version, for the description of the release.
func (r *release) writeChanges(context.Context) error {
	return os.WriteFile(filepath.Join(r.folder, "changes.md"), []byte(r.changes+"\n"), 0o644)
}

// writeChecksums writes SHA256SUMS of all files, in the form that sha256sum -c reads.
func (r *release) writeChecksums(context.Context) error {
	sums, err := sumsOf(r.folder)
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&lines, "%s  %s\n", sums[name], name)
	}
	return os.WriteFile(filepath.Join(r.folder, sumsFile), []byte(lines.String()), 0o644)
}

// sumsFile has the checksums of the other files.
const sumsFile = "SHA256SUMS"

// writeJSON writes a file of the release.
func (r *release) writeJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.folder, name), append(text, '\n'), 0o644)
}
