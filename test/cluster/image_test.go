//go:build linux

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// clientImage is the image of the test pods, and of the pause container of every pod.
const clientImage = "nearside.test/client:test"

// buildClientImage makes the archive of clientImage, and returns its path.
func buildClientImage(t *testing.T, folder string) string {
	t.Helper()
	program := filepath.Join(folder, "client")
	build(t, program, "github.com/nearside-dns/nearside/test/cluster/client")
	return writeImage(t, folder, clientImage, program)
}

// writeImage writes the archive of an image with one program into a folder, and returns its path.
func writeImage(t *testing.T, folder, name, program string) string {
	t.Helper()
	archive := filepath.Join(folder, filepath.Base(program)+".tar")
	kit.Must(t, os.WriteFile(archive, imageArchive(t, name, program), 0o600))
	return archive
}

// build builds a static program of the module.
func build(t *testing.T, path, pkg string) {
	t.Helper()
	kit.Output(t, kit.Go("build", "-o", path, pkg))
}

// imageArchive returns an image with one program.
func imageArchive(t *testing.T, name, program string) []byte {
	t.Helper()
	binary, err := os.ReadFile(program)
	kit.Must(t, err)
	entry := filepath.Base(program)
	return archiveOfImage(t, []string{name}, "/"+entry, archiveOf(t, 0o755, entry, binary))
}

// archiveOfImage returns an image with these names and layers in the form of "docker save", which containerd imports.
func archiveOfImage(t *testing.T, names []string, entry string, layers ...[]byte) []byte {
	t.Helper()
	var paths, sums []string
	var files []any
	for i, layer := range layers {
		path := fmt.Sprintf("layer-%d.tar", i)
		paths, sums = append(paths, path), append(sums, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)))
		files = append(files, path, layer)
	}
	config := asJSON(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{entry}, "Cmd": []string{"pause"},
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": sums},
	})
	manifest := asJSON(t, []map[string]any{{"Config": "config.json", "RepoTags": names, "Layers": paths}})
	return archiveOf(t, 0o644, append([]any{"config.json", config, "manifest.json", manifest}, files...)...)
}

// archiveOf returns a tar of files: a name as a string, then its content, and so on.
func archiveOf(t *testing.T, mode int64, files ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		content := files[i+1].([]byte)
		kit.Must(t, w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: mode, Size: int64(len(content))}))
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	kit.Must(t, w.Close())
	return out.Bytes()
}

func asJSON(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	kit.Must(t, err)
	return text
}
