package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// wanted are the modules that the machine loads, besides their dependencies: the drivers of interfaces, the expressions
// of the rules, and connection tracking with its netlink interface.
var wanted = []string{
	"dummy", "veth", "bridge",
	"nf_tables", "nft_ct", "nft_socket", "nft_fib_inet", "nft_nat", "nft_masq", "nft_chain_nat",
	"nf_conntrack", "nf_conntrack_netlink", "nf_nat",
}

// moduleSuffix ends a module's file name, except for the suffix of a compression.
const moduleSuffix = ".ko"

// A modules maps the name of a module to its file.
type modules map[string]string

// findModules finds the modules below a folder.
func findModules(folder string) (modules, error) {
	found := modules{}
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, rest, ok := strings.Cut(d.Name(), moduleSuffix)
		if ok && (rest == "" || rest == ".xz") {
			// A file can be named with dashes where the module's own name has underscores.
			found[strings.ReplaceAll(name, "-", "_")] = path
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find modules: %w", err)
	}
	return found, nil
}

// A module is a module to load.
type module struct {
	name string
	data []byte
}

// load returns the named modules and their dependencies, each after its own dependencies.
func (m modules) load(names []string) ([]module, error) {
	var order []module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		data, err := m.read(name)
		if err != nil {
			return err
		}
		needs, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, need := range needs {
			if err := add(need); err != nil {
				return err
			}
		}
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// read returns the content of a module's file, decompressed.
func (m modules) read(name string) ([]byte, error) {
	path, ok := m[name]
	if !ok {
		return nil, fmt.Errorf("module %s: %w", name, fs.ErrNotExist)
	}
	return readModule(path)
}

// dependencies returns the names of a module's dependencies, from its .modinfo section: modules.dep is only created when
// a kernel is installed.
func dependencies(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("has no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for line := range strings.SplitSeq(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}

// readModule reads a module's file, through xz if it is compressed.
func readModule(path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	data, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("read module %s: %w", path, err)
	}
	return data, nil
}
