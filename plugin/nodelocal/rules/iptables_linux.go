package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
)

// Comments of node-local-dns's rules. Ours have the same, so that each program adopts the rules of the other.
const (
	commentSkip  = "NodeLocal DNS Cache: skip conntrack"
	commentAllow = "NodeLocal DNS Cache: allow DNS traffic"
)

// filterTable is the table of iptables whose rules accept and drop packets.
const filterTable = "filter"

// lockWait is the max. wait for the lock that all users of iptables share, in seconds.
const lockWait = 5

// exitResource is the exit code of iptables if it did not get the lock or lacks a permission; only its text
// distinguishes them.
const (
	exitResource = 4
	lockText     = "lock"
)

// ErrLocked is the error if another process held the lock of iptables for too long.
var ErrLocked = errors.New("another process holds the lock of iptables")

// ipRule is one rule of iptables, for one address.
type ipRule struct {
	address      netip.Addr
	table, chain string
	spec         []string
}

// String returns the command that inserts the rule.
func (r ipRule) String() string {
	parts := []string{iptablesName(family(r.address)), "-t", r.table, "-I", r.chain}
	for _, s := range r.spec {
		if strings.Contains(s, " ") {
			s = strconv.Quote(s)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// IPTablesText returns the rules of the iptables backend, one per line, for golden files.
func (c Config) IPTablesText() string {
	var b strings.Builder
	for _, r := range c.ipRules() {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// ipRules returns the rules of node-local-dns, twelve per address with a health port. They apply whether or not
// the server answers: iptables has no sets whose elements expire.
func (c Config) ipRules() (all []ipRule) {
	port, health := strconv.Itoa(int(c.Port)), strconv.Itoa(int(c.Health))
	for _, a := range c.Addresses {
		add := func(table, chain, direction, protocol, side, number string) {
			target, comment := "NOTRACK", commentSkip
			if table == filterTable {
				target, comment = "ACCEPT", commentAllow
			}
			all = append(all, ipRule{a, table, chain, []string{
				"-p", protocol, direction, a.String(), side, number, "-j", target, "-m", "comment", "--comment", comment,
			}})
		}
		for _, p := range []string{"tcp", "udp"} {
			add("raw", "PREROUTING", "-d", p, "--dport", port)
			add(filterTable, "INPUT", "-d", p, "--dport", port)
			add("raw", "OUTPUT", "-s", p, "--sport", port)
			add(filterTable, "OUTPUT", "-s", p, "--sport", port)
			add("raw", "OUTPUT", "-d", p, "--dport", port)
		}
		if c.Health != 0 {
			add("raw", "OUTPUT", "-d", "tcp", "--dport", health)
			add("raw", "OUTPUT", "-s", "tcp", "--sport", health)
		}
	}
	return all
}

// IPTables are rules of iptables.
type IPTables struct {
	rules    []ipRule
	programs map[string]*iptables.IPTables // by address family
}

// NewIPTables returns the rules of the iptables backend. It fails if iptables, or ip6tables with IPv6
// addresses, is not installed. It changes nothing in the kernel.
func NewIPTables(c Config) (*IPTables, error) { return newIPTables(c.ipRules()) }

// NewAccepts returns only the rules that accept DNS in the filter tables of iptables on this node. The nftables
// backend needs them too: no table of nftables can accept packets that another one drops. Without a filter table
// there are none, and no error.
func NewAccepts(c Config) (*IPTables, error) {
	present, err := filterTables()
	if err != nil {
		return nil, err
	}
	return newIPTables(slices.DeleteFunc(c.ipRules(), func(r ipRule) bool {
		return r.table != filterTable || !present[family(r.address)]
	}))
}

func newIPTables(all []ipRule) (*IPTables, error) {
	t := &IPTables{all, map[string]*iptables.IPTables{}}
	protocols := map[string]iptables.Protocol{"ip": iptables.ProtocolIPv4, "ip6": iptables.ProtocolIPv6}
	for _, r := range all {
		f := family(r.address)
		if t.programs[f] != nil {
			continue
		}
		program, err := iptables.New(iptables.IPFamily(protocols[f]), iptables.Timeout(lockWait))
		if err != nil {
			return nil, fmt.Errorf("iptables: %w", locked(err))
		}
		t.programs[f] = program
	}
	return t, nil
}

// filterTables returns the address families with a filter table of iptables: of iptables-nft, which is in nftables,
// or of iptables-legacy.
func filterTables() (map[string]bool, error) {
	tables, err := Exchange(context.Background(), "list tables", (*nftables.Conn).ListTables)
	if err != nil {
		return nil, err
	}
	present := map[string]bool{}
	for _, f := range ipFamilies {
		legacy, _ := os.ReadFile(filepath.Join(procNet, f+tablesNames)) // only root may read it
		present[f] = slices.Contains(strings.Fields(string(legacy)), filterTable) ||
			slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == filterTable && t.Family == tableFamilies[f] })
	}
	return present, nil
}

// AcceptsState returns the filter tables of iptables-nft, with the handles of the rules that accept DNS to the addresses:
// equal texts mean the same tables and rules. complete is false if a rule is missing. It runs no program.
func AcceptsState(ctx context.Context, addrs []netip.Addr) (text string, complete bool, err error) {
	complete = true
	tables, err := Exchange(ctx, "list tables", (*nftables.Conn).ListTables)
	var state strings.Builder
	for _, f := range ipFamilies {
		if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == filterTable && t.Family == tableFamilies[f] }) {
			continue
		}
		for _, chain := range []string{"INPUT", "OUTPUT"} {
			missing := 0
			for _, a := range addrs {
				if family(a) == f {
					missing += len(protocols)
				}
			}
			fmt.Fprint(&state, f, chain)
			present, e := ReadChain(ctx, tableFamilies[f], filterTable, chain, predecessorExpression)
			err = errors.Join(err, e)
			for _, r := range present {
				if commentOf(r) == commentAllow && slices.ContainsFunc(matchedAddresses(r.Exprs), func(a netip.Addr) bool { return slices.Contains(addrs, a) }) {
					fmt.Fprint(&state, " ", r.Handle)
					missing--
				}
			}
			complete = complete && missing <= 0
			state.WriteByte('\n')
		}
	}
	return state.String(), complete, err
}

func (t *IPTables) program(r ipRule) *iptables.IPTables { return t.programs[family(r.address)] }

// Apply inserts the missing rules.
func (t *IPTables) Apply() error {
	for _, r := range t.rules {
		if err := t.program(r).InsertUnique(r.table, r.chain, 1, r.spec...); err != nil {
			return fmt.Errorf("iptables: insert %s: %w", r, locked(err))
		}
	}
	return nil
}

// Intact returns whether all rules are present.
func (t *IPTables) Intact() (bool, error) {
	for _, r := range t.rules {
		present, err := t.program(r).Exists(r.table, r.chain, r.spec...)
		if err != nil {
			return false, fmt.Errorf("iptables: find %s: %w", r, locked(err))
		}
		if !present {
			return false, nil
		}
	}
	return true, nil
}

// Rules returns the number of rules.
func (t *IPTables) Rules() int { return len(t.rules) }

// Withdraw removes the rules: they have no lease, so that nothing else directs packets to cluster DNS.
func (t *IPTables) Withdraw() error { return t.Remove() }

// Remove removes the rules with all their copies. It continues after an error, and returns the first.
func (t *IPTables) Remove() error {
	var first error
	failed := 0
	for _, r := range t.rules {
		if err := t.removeAll(r); err != nil {
			if failed++; failed == 1 {
				first = fmt.Errorf("iptables: remove %s: %w", r, locked(err))
			}
		}
	}
	if failed > 1 {
		return fmt.Errorf("%w; and %d more rules", first, failed-1)
	}
	return first
}

// removeAll removes all copies of a rule.
func (t *IPTables) removeAll(r ipRule) error {
	const maxCopies = 100
	for range maxCopies {
		present, err := t.program(r).Exists(r.table, r.chain, r.spec...)
		if err != nil || !present {
			return err
		}
		if err := t.program(r).Delete(r.table, r.chain, r.spec...); err != nil {
			return err
		}
	}
	return nil
}

// locked adds ErrLocked to an error if the lock was the cause.
func locked(err error) error {
	if e := (*iptables.Error)(nil); errors.As(err, &e) && e.ExitStatus() == exitResource && strings.Contains(e.Error(), lockText) {
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}
