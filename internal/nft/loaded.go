// Package nft reports the state of the kernel's nf_tables without loading the module. It is a leaf: it imports nothing of this
// project.
package nft

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// Loaded reports whether listing nftables loads no module: the running kernel has nf_tables, or it has no modules at all. A kernel
// that shows nf_tables neither in its list of modules nor in that of its functions counts as one without.
func Loaded() bool { return loaded("/proc/modules", builtIn) }

// builtIn reports whether nf_tables is a part of the kernel. Reading all functions takes some 20 ms.
var builtIn = sync.OnceValue(func() bool { return hasFunction("/proc/kallsyms") })

func loaded(modules string, builtIn func() bool) bool {
	is, err := hasLine(modules, func(line string) bool { return strings.HasPrefix(line, "nf_tables ") })
	if is || errors.Is(err, fs.ErrNotExist) {
		return true // a kernel without modules loads none
	}
	return builtIn()
}

// hasFunction reports whether a list of functions has one of nf_tables that is in no module: the fourth field is a module's name.
func hasFunction(symbols string) bool {
	has, err := hasLine(symbols, func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) == 3 && fields[2] == "nft_do_chain"
	})
	return has && err == nil
}

// hasLine reports whether a file has a line for which match is true.
func hasLine(path string, match func(string) bool) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if match(lines.Text()) {
			return true, nil
		}
	}
	return false, lines.Err()
}
