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

// ProcNet is the folder of the network namespace that the thread is in.
const ProcNet = "/proc/thread-self/net"

// Legacy is the old iptables, of one family.
type Legacy struct {
	// Family is ip or ip6.
	Family string
	// Tables are the tables that are there. To read another one would create it.
	Tables []string

	program string // that reads them
}

// OpenLegacy finds the old iptables of each family that has tables in it, by the files ip_tables_names
// and ip6_tables_names in a folder such as /proc/net. With an error it returns the rest; the error is
// exec.ErrNotFound if there are tables and no program for them.
func OpenLegacy(ctx context.Context, folder string) (all []Legacy, err error) {
	for _, family := range []string{"ip", "ip6"} {
		text, e := os.ReadFile(filepath.Join(folder, family+"_tables_names"))
		l := Legacy{Family: family, Tables: strings.Fields(string(text))}
		switch {
		case errors.Is(e, fs.ErrNotExist): // the kernel has none, or has not loaded it
			continue
		case e != nil:
			err = errors.Join(err, fmt.Errorf("tables of the old %s: %w", iptablesName(family), e))
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

// List returns what a table holds, or one chain of it, in the words of "iptables -S".
func (l Legacy) List(ctx context.Context, table string, chain ...string) (string, error) {
	return runIPTables(ctx, l.program, append([]string{"-t", table, "-S"}, chain...)...)
}

// legacyPredecessors reads the tables of the old iptables.
func legacyPredecessors(ctx context.Context, folder string) (found []PredecessorRule, err error) {
	all, err := OpenLegacy(ctx, folder)
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

// predecessors are those among the rules that "iptables -S" printed.
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

// addressesAfter returns the addresses after -s and -d.
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

// SplitWords splits a line of "iptables -S", where words with spaces stand in double quotes.
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

// removeLegacy removes a rule of the old iptables, one if it is there twice, and returns whether it was
// there.
func (r PredecessorRule) removeLegacy(ctx context.Context) (bool, error) {
	do := func(what string) error {
		_, err := runIPTables(ctx, r.program, append([]string{"-t", r.Table, what, r.Chain}, r.spec...)...)
		return err
	}
	err := do("-D")
	if err == nil {
		return true, nil
	}
	const notThere = 1 // exit code of a look for a rule that is not there
	if exit := (*exec.ExitError)(nil); errors.As(do("-C"), &exit) && exit.ExitCode() == notThere {
		return false, nil
	}
	return false, err
}

// legacyProgram returns the program that reads the old iptables: the one with that name, or a plain
// one that says it is.
func legacyProgram(ctx context.Context, name string) (string, error) {
	if path, err := exec.LookPath(name + "-legacy"); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err == nil {
		version, err := run(ctx, path, "-V")
		if err == nil && !strings.Contains(version, "nf_tables") {
			return path, nil
		}
	}
	return "", fmt.Errorf("this node has tables of the old %s, and the program %s-legacy is not here to read them: %w",
		name, name, exec.ErrNotFound)
}

// runIPTables runs a program of iptables, which waits for the lock if somebody else holds it.
func runIPTables(ctx context.Context, program string, args ...string) (string, error) {
	out, err := run(ctx, program, append([]string{"-w", strconv.Itoa(lockWait)}, args...)...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == exitResource {
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return out, err
}

// run runs a program until it ends or the context does, and returns what it printed.
func run(ctx context.Context, program string, args ...string) (string, error) {
	var out, complaint bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr = &out, &complaint
	c.WaitDelay = time.Second // of a child that keeps the pipes open
	if err := c.Run(); err != nil {
		said := strings.Join(strings.Fields(complaint.String()), " ")
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, said)
	}
	return out.String(), nil
}
