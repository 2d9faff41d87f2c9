//go:build linux

package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// RuleComment is what the comment of every iptables rule of node-local-dns, and of nodecache's
// iptables backend, begins with.
const RuleComment = "NodeLocal DNS Cache:"

// IPTablesRule is an iptables rule with that comment.
type IPTablesRule struct {
	// Table and Chain are where it is; Family of the table is ip or ip6.
	Table Table
	Chain string
	// Comment is the whole comment.
	Comment string
	// Addresses are those that the rule matches, where they are known.
	Addresses []netip.Addr

	handle  uint64   // of a rule of iptables-nft
	program string   // the program that removes it otherwise
	spec    []string // what the program calls the rule
}

// Legacy says whether the rule is in the old iptables, not in nftables.
func (r IPTablesRule) Legacy() bool { return r.program != "" }

// String names the rule in one line.
func (r IPTablesRule) String() string {
	tool := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[r.Table.Family]
	if r.Legacy() {
		tool += "-legacy"
	}
	text := fmt.Sprintf("%s -t %s %s %q", tool, r.Table.Name, r.Chain, r.Comment)
	for _, a := range r.Addresses {
		text += " " + a.String()
	}
	return text
}

// placesOfRules are the tables and chains that hold such rules.
var placesOfRules = []struct{ table, chain string }{
	{"raw", "PREROUTING"}, {"raw", "OUTPUT"}, {"filter", "INPUT"}, {"filter", "OUTPUT"},
}

// NFTRules returns the rules of that comment in the tables of iptables-nft.
func NFTRules(ctx context.Context, r Ruleset) ([]IPTablesRule, error) {
	return within(ctx, "read rules of iptables-nft", func() ([]IPTablesRule, error) {
		var found []IPTablesRule
		for _, family := range []string{"ip", "ip6"} {
			for _, place := range placesOfRules {
				if !r.HasChain(family, place.table, place.chain) {
					continue
				}
				chain := Chain{Table: Table{family, place.table}, Name: place.chain}
				rules, err := again(func() ([]*nftables.Rule, error) { return rulesOf(chain) })
				if err != nil {
					return found, err
				}
				for _, rule := range rules {
					if comment := commentOf(rule); strings.HasPrefix(comment, RuleComment) {
						found = append(found, IPTablesRule{
							Table: chain.Table, Chain: chain.Name, Comment: comment,
							Addresses: compared(rule.Exprs), handle: rule.Handle,
						})
					}
				}
			}
		}
		return found, nil
	})
}

// commentOf returns a rule's comment: iptables-nft keeps it as a match, or in the data that
// nftables keeps for programs.
func commentOf(rule *nftables.Rule) string {
	for _, e := range rule.Exprs {
		m, ok := e.(*expr.Match)
		if !ok || m.Name != "comment" {
			continue
		}
		if c, ok := m.Info.(*xt.Comment); ok {
			return string(*c)
		}
	}
	if i := bytes.Index(rule.UserData, []byte(RuleComment)); i >= 0 {
		text, _, _ := bytes.Cut(rule.UserData[i:], []byte{0})
		return string(text)
	}
	return ""
}

// Legacy is what the old iptables holds.
type Legacy struct {
	// Rules are those with the comment.
	Rules []IPTablesRule
	// Drops are the chains, such as "ip filter INPUT", whose policy is drop.
	Drops []string
	// Services says that kube-proxy's chain KUBE-SERVICES is there.
	Services bool
}

// LegacyRules reads the old iptables. Only the tables in procNet/ip_tables_names are read, since to
// read another one would create it. It is an error if there are such tables and no program for them.
func LegacyRules(ctx context.Context, procNet string) (Legacy, error) {
	var l Legacy
	var problems []error
	for _, f := range []struct{ family, file, program string }{
		{"ip", "ip_tables_names", "iptables"}, {"ip6", "ip6_tables_names", "ip6tables"},
	} {
		tables := fieldsOf(filepath.Join(procNet, f.file))
		if len(tables) == 0 {
			continue
		}
		program, err := legacyProgram(ctx, f.program)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for _, table := range tables {
			text, err := run(ctx, program, "-w", "-t", table, "-S")
			if err != nil {
				problems = append(problems, err)
				continue
			}
			l.read(Table{f.family, table}, program, text)
		}
	}
	return l, errors.Join(problems...)
}

// read takes what "iptables -S" printed of a table.
func (l *Legacy) read(table Table, program, text string) {
	for line := range strings.Lines(text) {
		words := splitWords(strings.TrimSpace(line))
		switch {
		case len(words) < 2:
		case words[0] == "-P" && len(words) == 3 && words[2] == "DROP" && table.Name == "filter":
			l.Drops = append(l.Drops, table.String()+" "+words[1])
		case words[0] == "-N" && words[1] == "KUBE-SERVICES":
			l.Services = true
		case words[0] == "-A":
			i := slices.Index(words, "--comment")
			if i < 0 || i+1 == len(words) || !strings.HasPrefix(words[i+1], RuleComment) {
				continue
			}
			l.Rules = append(l.Rules, IPTablesRule{
				Table: table, Chain: words[1], Comment: words[i+1], Addresses: matched(words),
				program: program, spec: words[2:],
			})
		}
	}
}

// matched returns the addresses after -s and -d.
func matched(words []string) []netip.Addr {
	var found []netip.Addr
	for i := range len(words) - 1 {
		if words[i] != "-s" && words[i] != "-d" {
			continue
		}
		if p, err := netip.ParsePrefix(words[i+1]); err == nil && p.IsSingleIP() {
			found = append(found, p.Addr())
		}
	}
	return found
}

// splitWords splits a line of "iptables -S", where words with spaces stand in double quotes.
func splitWords(line string) []string {
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

// RemoveRule removes one such rule. It is no error if it is gone.
func RemoveRule(ctx context.Context, r IPTablesRule) error {
	if r.Legacy() {
		return r.removeLegacy(ctx)
	}
	_, err := within(ctx, "remove "+r.String(), func() (struct{}, error) {
		c, err := nftables.New()
		if err != nil {
			return struct{}{}, err
		}
		table := &nftables.Table{Family: familyOf(r.Table.Family), Name: r.Table.Name}
		rule := &nftables.Rule{Table: table, Chain: &nftables.Chain{Table: table, Name: r.Chain}, Handle: r.handle}
		if err := c.DelRule(rule); err != nil {
			return struct{}{}, err
		}
		if err = c.Flush(); errors.Is(err, unix.ENOENT) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}

func (r IPTablesRule) removeLegacy(ctx context.Context) error {
	do := func(what string) error {
		_, err := run(ctx, r.program, append([]string{"-w", "-t", r.Table.Name, what, r.Chain}, r.spec...)...)
		return err
	}
	err := do("-D")
	const notThere = 1 // exit code of a look for a rule that is not there
	if exit := (*exec.ExitError)(nil); err != nil && errors.As(do("-C"), &exit) && exit.ExitCode() == notThere {
		return nil
	}
	return err
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

// fieldsOf returns the words of a file; none if it is not there.
func fieldsOf(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}
