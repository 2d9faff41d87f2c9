package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// imageFiles are the files of a program's image in a release.
var imageFiles = []string{".tar", ".sbom.json"}

// buildImages empties the folder of the release, and builds the images there.
func (r *release) buildImages(ctx context.Context) error {
	if err := os.RemoveAll(r.folder); err != nil {
		return err
	}
	if err := os.MkdirAll(r.folder, 0o755); err != nil {
		return err
	}
	built, err := r.makeImage(ctx, r.root, nil)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(built) }()
	for _, name := range imageNames() {
		if err := os.Rename(filepath.Join(built, name), filepath.Join(r.folder, name)); err != nil {
			return err
		}
	}
	return nil
}

// rebuildImages builds the images from a clone in another folder, without the cache of the first build, and compares them.
func (r *release) rebuildImages(ctx context.Context) error {
	place, err := os.MkdirTemp("", "nearside-rebuild-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(place) }()
	clone := filepath.Join(place, "another", "folder")
	if _, err := r.output(ctx, "git", "clone", "--quiet", "--no-hardlinks", r.root, clone); err != nil {
		return err
	}
	if _, err := r.output(ctx, "git", "-C", clone, "checkout", "--quiet", "--detach", r.commit); err != nil {
		return err
	}
	built, err := r.makeImage(ctx, clone, []string{"GOCACHE=" + filepath.Join(place, "cache"), "TZ=Pacific/Auckland"})
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(built) }()
	return compareFiles(r.folder, built, imageNames())
}

func imageNames() (names []string) {
	for _, p := range programs {
		for _, suffix := range imageFiles {
			names = append(names, p+suffix)
		}
	}
	return names
}

// makeImage runs `make image` in a tree, and returns a new folder with its output beside the folder of the release.
func (r *release) makeImage(ctx context.Context, tree string, environment []string) (folder string, err error) {
	if folder, err = os.MkdirTemp(filepath.Dir(r.folder), ".images-"); err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "make", "image", "IMAGES="+folder, "REPOSITORY="+r.repository, "VERSION="+r.version, "REVISION="+r.commit,
		"SOURCE_DATE_EPOCH="+strconv.FormatInt(r.created, 10))
	c.Dir, c.Env = tree, slices.Concat(os.Environ(), []string{"GOTOOLCHAIN=" + r.toolchain}, environment)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make image: %w\n%s", err, out)
	}
	return folder, nil
}

// compareFiles compares the bytes of files with the same names in two folders.
func compareFiles(one, other string, names []string) error {
	for _, name := range names {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(other, name))
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			return fmt.Errorf("%s: %w: sha256 %x and %x", name, errDiffers, sha256.Sum256(a), sha256.Sum256(b))
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
	entries, err := os.ReadDir(r.folder)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(r.folder, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(content), e.Name()))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(r.folder, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}

// writeJSON writes a file of the release.
func (r *release) writeJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.folder, name), append(text, '\n'), 0o644)
}
