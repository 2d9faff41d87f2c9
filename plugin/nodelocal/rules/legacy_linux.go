package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// procNet is the folder of /proc with the files of the thread's network namespace.
const procNet = "/proc/thread-self/net"

// Legacy is iptables-legacy, which has its rules outside of nftables, of one address family.
type Legacy struct {
	Family string   // ip or ip6
	Tables []string // the existing ones: reading another one would create it

	program string // that reads the tables
}

// ipFamilies are the address families by their names in nft.
var ipFamilies = []string{"ip", "ip6"}

// tablesNames is the end of the names of the files in procNet that list the tables of a family.
const tablesNames = "_tables_names"

// OpenLegacy returns iptables-legacy of each family with tables. With an error it returns the other family; the error is
// exec.ErrNotFound if no program can read the tables.
func OpenLegacy(ctx context.Context) (all []Legacy, err error) { return openLegacy(ctx, procNet) }

// openLegacy is OpenLegacy with the folder that has the files ip_tables_names and ip6_tables_names.
func openLegacy(ctx context.Context, folder string) (all []Legacy, err error) {
	for _, family := range ipFamilies {
		text, e := os.ReadFile(filepath.Join(folder, family+tablesNames))
		l := Legacy{Family: family, Tables: strings.Fields(string(text))}
		switch {
		case errors.Is(e, fs.ErrNotExist): // the kernel does not have the module, or has not loaded it
			continue
		case e != nil:
			err = errors.Join(err, fmt.Errorf("tables of %s-legacy: %w", iptablesName(family), e))
			continue
		case len(l.Tables) == 0:
			continue
		}
		if l.program, e = legacyProgram(ctx, iptablesName(family)); e != nil {
			err = errors.Join(err, e)
			continue
		}
		all = append(all, l)
	}
	return all, err
}

// List returns the rules of a table, or of one chain of it, as "iptables -S" prints them.
func (l Legacy) List(ctx context.Context, table string, chain ...string) (string, error) {
	return runIPTables(ctx, l.program, append([]string{"-t", table, "-S"}, chain...)...)
}

// legacyPredecessors returns the predecessors' rules in iptables-legacy.
func legacyPredecessors(ctx context.Context, folder string) (found []PredecessorRule, err error) {
	all, err := openLegacy(ctx, folder)
	for _, l := range all {
		for _, place := range predecessorPlaces {
			if !slices.Contains(l.Tables, place.table) {
				continue
			}
			text, e := l.List(ctx, place.table, place.chain)
			err = errors.Join(err, e)
			found = append(found, l.predecessors(place.table, text)...)
		}
	}
	return found, err
}

// predecessors returns the predecessors' rules in the output of "iptables -S".
func (l Legacy) predecessors(table, text string) (found []PredecessorRule) {
	for line := range strings.Lines(text) {
		words := SplitWords(strings.TrimSpace(line))
		i := slices.Index(words, "--comment")
		if len(words) < 2 || words[0] != "-A" || i < 0 || i+1 == len(words) || !strings.HasPrefix(words[i+1], predecessorComment) {
			continue
		}
		found = append(found, PredecessorRule{
			Family: l.Family, Table: table, Chain: words[1], Comment: words[i+1],
			Addresses: addressesAfter(words), program: l.program, spec: words[2:],
		})
	}
	return found
}

// addressesAfter returns the single addresses after -s and -d.
func addressesAfter(words []string) (found []netip.Addr) {
	for i := 1; i+1 < len(words); i++ {
		if words[i] != "-s" && words[i] != "-d" || words[i-1] == "!" {
			continue
		}
		if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() {
			found = append(found, p.Addr())
		}
	}
	return found
}

// SplitWords splits a line of "iptables -S", in which words with spaces are in double quotes.
func SplitWords(line string) []string {
	var words []string
	var word strings.Builder
	quoted, inWord := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && quoted && i+1 < len(line):
			i++
			word.WriteByte(line[i])
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// removeLegacy removes one copy of a rule of iptables-legacy, and returns whether it was present.
func (r PredecessorRule) removeLegacy(ctx context.Context) (bool, error) {
	run := func(command string) error {
		_, err := runIPTables(ctx, r.program, append([]string{"-t", r.Table, command, r.Chain}, r.spec...)...)
		return err
	}
	err := run("-D")
	if err == nil {
		return true, nil
	}
	const missing = 1 // exit code of -C
	if exit := (*exec.ExitError)(nil); errors.As(run("-C"), &exit) && exit.ExitCode() == missing {
		return false, nil
	}
	return false, err
}

// legacyProgram returns the program that reads iptables-legacy: one of that name, or of the plain name without
// nf_tables in its version.
func legacyProgram(ctx context.Context, name string) (string, error) {
	if path, err := exec.LookPath(name + "-legacy"); err == nil {
		return path, nil
	}
	if path, err := exec.LookPath(name); err == nil {
		version, err := run(ctx, path, "-V")
		if err == nil && !strings.Contains(version, "nf_tables") {
			return path, nil
		}
	}
	return "", fmt.Errorf("this node has tables of %s-legacy, and no such program to read them: %w", name, exec.ErrNotFound)
}

// runIPTables runs a program of iptables, which waits for the lock.
func runIPTables(ctx context.Context, program string, args ...string) (string, error) {
	out, err := run(ctx, program, append([]string{"-w", strconv.Itoa(lockWait)}, args...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitResource {
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return out, err
}

// run runs a program until it ends or the context does, and returns its output. go-iptables, which runs the programs
// of [IPTables], has no such limit.
func run(ctx context.Context, program string, args ...string) (string, error) {
	var out, stderr bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr = &out, &stderr
	c.WaitDelay = time.Second // a child may hold the pipes open
	if err := c.Run(); err != nil {
		text := strings.Join(strings.Fields(stderr.String()), " ")
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, text)
	}
	return out.String(), nil
}
