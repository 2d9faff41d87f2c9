package controlplane

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// Binary returns the absolute path of the program with this name ("etcd",
// "kube-apiserver", "coredns") in the cache folder of test/install.sh. It is an
// error if the program is not there.
func Binary(name string) (string, error) {
	folder, err := binaryFolder()
	if err != nil {
		return "", fmt.Errorf("find binary %s: %w", name, err)
	}
	path := filepath.Join(folder, name)
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find binary %s: %w", name, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return "", fmt.Errorf("find binary %s: %s is not an executable file", name, path)
	}
	return path, nil
}

// RequireBinary is Binary, but without the binary it skips or fails the test (see kit.Lacking).
func RequireBinary(t testing.TB, name string) string {
	t.Helper()
	path, err := Binary(name)
	if err != nil {
		kit.Lacking(t, err.Error()+"; run test/install.sh")
	}
	return path
}

// binaryFolder returns the folder that "test/install.sh --print-bin" prints.
func binaryFolder() (string, error) {
	folder := os.Getenv("NEARSIDE_TEST_BIN")
	if folder == "" {
		cache := os.Getenv("XDG_CACHE_HOME")
		if cache == "" {
			home, err := homeFolder()
			if err != nil {
				return "", err
			}
			cache = filepath.Join(home, ".cache")
		}
		folder = filepath.Join(cache, "nearside", "bin")
	}
	if !filepath.IsAbs(folder) {
		return "", fmt.Errorf("the folder for the binaries must be an absolute path, not %q", folder)
	}
	return folder, nil
}

// homeFolder returns $HOME or, without it, the home folder of the current user in the password database.
func homeFolder() (string, error) {
	if home := os.Getenv("HOME"); home != "" {
		return home, nil
	}
	current, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("home folder: %w", err)
	}
	if current.HomeDir == "" {
		return "", errors.New("home folder: neither $HOME nor the password database has it")
	}
	return current.HomeDir, nil
}
