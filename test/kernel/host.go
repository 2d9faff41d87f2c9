package kernel

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

// addHost adds programs of the host, in /bin, and the libraries that they are linked with.
func addHost(a *archive, names []string) error {
	libraries := map[string]bool{}
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			return err
		}
		a.copy("/bin/"+name, 0o755, path)
		if err := linked(path, libraries); err != nil {
			return err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(libraries)) {
		a.copy(path, 0o755, path)
	}
	return nil
}

// linked adds a program's libraries, at their paths on the host.
func linked(program string, libraries map[string]bool) error {
	if mustBeStatic(program) == nil {
		return nil
	}
	out, err := exec.Command("ldd", program).Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", program, err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			libraries[word] = true
		}
	}
	return nil
}
