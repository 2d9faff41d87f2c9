//go:build linux

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
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
	if err := os.WriteFile(archive, imageArchive(t, name, program), 0o600); err != nil {
		t.Fatal(err)
	}
	return archive
}

// build builds a static program of the module.
func build(t *testing.T, path, pkg string) {
	t.Helper()
	command := exec.Command("go", "build", "-o", path, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// imageArchive returns an image with one program in the form of "docker save", which containerd imports.
func imageArchive(t *testing.T, name, program string) []byte {
	t.Helper()
	binary, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	entry := "/" + filepath.Base(program)
	layer := archiveOf(t, 0o755, entry[1:], binary)
	config := asJSON(t, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{entry}, "Cmd": []string{"pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	manifest := asJSON(t, []map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	return archiveOf(t, 0o644, "config.json", config, "layer.tar", layer, "manifest.json", manifest)
}

// archiveOf returns a tar of files: a name as a string, then its content, and so on.
func archiveOf(t *testing.T, mode int64, files ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		content := files[i+1].([]byte)
		if err := w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func asJSON(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
