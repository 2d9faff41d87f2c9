//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const withoutTables = `use a kernel with nftables, or "backend iptables", which has no lease`

// feature is a part of the kernel.
type feature struct{ module, symbol, without string }

// features are the parts of the kernel that nodecache uses, as a module or built in. Each symbol is a function of the part in
// /proc/kallsyms, which is often all that a container sees. A bridge replaces a missing dummy interface.
var features = []feature{
	{"nf_tables", "nft_do_chain", withoutTables},
	{"nf_conntrack", "nf_conntrack_in", withoutTables},
	{"nft_ct", "nft_notrack_eval", withoutTables},
	{"nft_nat", "nft_nat_eval", withoutTables},
	{"nft_masq", "nft_masq_eval", withoutTables},
	{"nft_socket", "nft_socket_eval", "queries go to a killed nodecache until its lease expires, for up to a second"},
	{"dummy", "dummy_xmit", "there is no bridge either: the addresses are on lo"},
	{"veth", "veth_xmit", "nodecache's queries to itself use lo, so that a firewall which rejects those of pods does not end the lease"},
}

// checkFeatures reports the features that the kernel lacks, as far as its modules and symbols show. It loads no module.
func (n *node) checkFeatures(context.Context) []Line {
	present, complete := n.kernelModules()
	symbols, err := n.kernelSymbols("br_dev_xmit")
	if slices.Contains(present, "bridge") || symbols["br_dev_xmit"] {
		present = append(present, "dummy")
	}
	if _, modules := os.Stat(n.proc.Path("modules")); err == nil && errors.Is(modules, fs.ErrNotExist) {
		complete = true // a kernel without modules: the symbols show every feature
	}
	var lines []Line
	var unknown []string
	for _, f := range features {
		switch {
		case slices.Contains(present, f.module), symbols[f.symbol]:
		case complete:
			lines = append(lines, Line{"kernel feature " + f.module, "not in this kernel", Warn, f.without})
		default:
			unknown = append(unknown, f.module)
		}
	}
	switch {
	case len(unknown) > 0:
		lines = append(lines, Line{"kernel features", "not known from here: " + strings.Join(unknown, ", "), Skip, "run it on the node, where /lib/modules is visible"})
	case len(lines) == 0:
		lines = one("kernel features", fmt.Sprintf("all %d", len(features)), OK, "")
	}
	return lines
}

// kernelModules returns the modules that are loaded, can be loaded or are built in. The list is complete if the kernel's
// folder of modules is visible.
func (n *node) kernelModules() (names []string, complete bool) {
	read := func(path string) error {
		content, err := os.ReadFile(path)
		for line := range strings.Lines(string(content)) { // a path, with a colon and dependencies in modules.dep
			name, _, _ := strings.Cut(filepath.Base(strings.Fields(line + " :")[0]), ".ko")
			names = append(names, strings.ReplaceAll(name, "-", "_"))
		}
		return err
	}
	_ = read(n.proc.Path("modules"))
	release, err := n.proc.SysctlStrings("kernel.osrelease")
	if err != nil || len(release) != 1 {
		return names, false
	}
	folder := filepath.Join(n.modules, release[0])
	builtin, loadable := read(filepath.Join(folder, "modules.builtin")), read(filepath.Join(folder, "modules.dep"))
	return names, builtin == nil && loadable == nil
}

// kernelSymbols returns which symbols of features, and which of the other names, the running kernel has. A compiler may have added
// a suffix such as .cold.
func (n *node) kernelSymbols(names ...string) (map[string]bool, error) {
	for _, f := range features {
		names = append(names, f.symbol)
	}
	content, err := os.ReadFile(n.proc.Path("kallsyms"))
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(` (`+strings.Join(names, "|")+`)[\s.]`).FindAllSubmatch(content, -1) {
		found[string(m[1])] = true
	}
	return found, nil
}
