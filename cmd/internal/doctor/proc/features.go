package proc

import (
	"bufio"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Feature is a part of the kernel that may be left out, or be a module.
type Feature struct {
	// Option is the name in the kernel's configuration, without CONFIG_.
	Option string
	// Module is the name of its module; empty for a part of another one.
	Module string
	// Symbol is a function that only this feature has.
	Symbol string
}

// Presence says whether a feature is there.
type Presence int

// What can be known without a change to the machine.
const (
	// Unknown: neither the configuration nor the modules nor the symbols can be read from here.
	Unknown Presence = iota
	// Present: in the running kernel.
	Present
	// Loadable: a module that is not loaded; the kernel loads it when it is asked for.
	Loadable
	// Absent: not in this kernel.
	Absent
)

// kernel is what was read about the kernel, each part only where it could be read.
type kernel struct {
	loaded    map[string]bool   // names in /proc/modules
	builtin   map[string]bool   // names in modules.builtin
	files     map[string]bool   // names in modules.dep
	installed bool              // modules.dep could be read
	options   map[string]string // the configuration: y, m or n
	symbols   map[string]bool   // those that were asked for and found
}

// Features says of each feature whether it is there. It is read from /proc/modules, the kernel's
// configuration, the lists in /lib/modules and /proc/kallsyms: a container often sees the last only.
func (r Root) Features(features []Feature) []Presence {
	k := r.kernel(features)
	presences := make([]Presence, len(features))
	for i, f := range features {
		presences[i] = k.presence(f)
	}
	return presences
}

func (k *kernel) presence(f Feature) Presence {
	option, known := k.options[f.Option]
	switch {
	case k.loaded[f.Module], k.builtin[f.Module], k.symbols[f.Symbol], option == "y" && f.Module != "":
		return Present
	case k.files[f.Module]:
		return Loadable
	case f.Module == "":
		return k.part(option, known)
	case k.installed:
		return Absent // its module, if it is one, is not installed
	case option == "m":
		return Loadable
	case known, k.options != nil:
		return Absent
	}
	return Unknown
}

// part is the presence of a feature that is no module of its own: its symbol shows only once the
// module that it belongs to is loaded.
func (k *kernel) part(option string, known bool) Presence {
	switch {
	case option == "y":
		return Present
	case known, k.options != nil:
		return Absent
	}
	return Unknown
}

func (r Root) kernel(features []Feature) *kernel {
	k := &kernel{loaded: map[string]bool{}, builtin: map[string]bool{}, files: map[string]bool{}}
	_ = eachLine(filepath.Join(r.Proc, "modules"), func(line string) {
		name, _, _ := strings.Cut(line, " ")
		k.loaded[name] = true
	})
	if release, err := r.Release(); err == nil {
		folder := filepath.Join(r.Modules, release)
		_ = eachLine(filepath.Join(folder, "modules.builtin"), func(line string) { k.builtin[moduleName(line)] = true })
		k.installed = eachLine(filepath.Join(folder, "modules.dep"), func(line string) {
			path, _, _ := strings.Cut(line, ":")
			k.files[moduleName(path)] = true
		}) == nil
		k.options = r.options(release)
	}
	k.readSymbols(r, features)
	delete(k.loaded, "")
	delete(k.builtin, "")
	delete(k.files, "")
	return k
}

// moduleName returns the name of the module in a file such as
// kernel/drivers/net/dummy.ko.xz. The kernel writes _ where the file has -.
func moduleName(path string) string {
	name, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// options returns the kernel's configuration, or nil where it cannot be read.
func (r Root) options(release string) map[string]string {
	for _, path := range []string{
		filepath.Join(r.Proc, "config.gz"),
		filepath.Join(r.Boot, "config-"+release),
		filepath.Join(r.Modules, release, "config"),
	} {
		options := map[string]string{}
		err := eachLine(path, func(line string) {
			if name, value, ok := strings.Cut(strings.TrimPrefix(line, "CONFIG_"), "="); ok {
				options[name] = value
			} else if name, ok := strings.CutSuffix(strings.TrimPrefix(line, "# CONFIG_"), " is not set"); ok {
				options[name] = "n"
			}
		})
		if err == nil && len(options) > 0 {
			return options
		}
	}
	return nil
}

func (k *kernel) readSymbols(r Root, features []Feature) {
	wanted := make(map[string]bool, len(features))
	for _, f := range features {
		if f.Symbol != "" {
			wanted[f.Symbol] = true
		}
	}
	k.symbols = make(map[string]bool, len(wanted))
	_ = eachLine(filepath.Join(r.Proc, "kallsyms"), func(line string) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return
		}
		// A compiler that optimises over files adds a suffix such as .llvm.123 or .cold.
		name, _, _ := strings.Cut(fields[2], ".")
		if wanted[name] {
			k.symbols[name] = true
		}
	})
}

// eachLine calls do with each line of a file, which may be compressed by gzip.
func eachLine(path string, do func(line string)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // only read
	var reader io.Reader = file
	if strings.HasSuffix(path, ".gz") {
		if reader, err = gzip.NewReader(file); err != nil {
			return err
		}
	}
	lines := bufio.NewScanner(reader)
	lines.Buffer(nil, 1<<20) // modules.dep has long lines
	for lines.Scan() {
		do(lines.Text())
	}
	return lines.Err()
}
