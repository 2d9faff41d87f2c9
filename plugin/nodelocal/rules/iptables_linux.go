package rules

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/google/nftables"
)

// lockWait bounds the wait for the lock that all users of iptables share, in seconds.
const lockWait = 5

// exitResource is the exit code of iptables when it did not get the lock, or was not permitted to; only
// its text tells which.
const (
	exitResource = 4
	lockText     = "lock"
)

// IPTables are rules of iptables.
type IPTables struct {
	rules []ipRule
	four  *iptables.IPTables // nil without rules for IPv4
	six   *iptables.IPTables
}

// ErrLocked says that somebody else held the lock of iptables for too long.
var ErrLocked = errors.New("the lock of iptables is held by somebody else")

// NewIPTables returns the rules of the iptables backend. It fails if iptables, or ip6tables with IPv6
// addresses, is not installed. It changes nothing.
func NewIPTables(c Config) (*IPTables, error) { return newIPTables(c.ipRules()) }

// NewAccepts returns those of the rules that accept DNS in the filter tables of iptables that the node
// has. They belong to the nftables backend as well: no table of nftables can overrule what another one
// drops. Without a filter table there are none, and no error.
func NewAccepts(c Config) (*IPTables, error) {
	four, six, err := filterTables()
	if err != nil {
		return nil, err
	}
	accepts := slices.DeleteFunc(c.ipRules(), func(r ipRule) bool {
		return r.table != filterTable || r.address.Is4() && !four || r.address.Is6() && !six
	})
	return newIPTables(accepts)
}

func newIPTables(all []ipRule) (*IPTables, error) {
	t := &IPTables{rules: all}
	for _, r := range all {
		protocol, program := iptables.ProtocolIPv4, &t.four
		if r.address.Is6() {
			protocol, program = iptables.ProtocolIPv6, &t.six
		}
		if *program != nil {
			continue
		}
		var err error
		if *program, err = iptables.New(iptables.IPFamily(protocol), iptables.Timeout(lockWait)); err != nil {
			if errors.Is(err, exec.ErrNotFound) {
				return nil, fmt.Errorf("iptables: %w", err)
			}
			return nil, fmt.Errorf("iptables: %w", locked(err))
		}
	}
	return t, nil
}

// filterTables returns for which families the node has a filter table of iptables, of the new one, which
// keeps it in nftables, or the old one.
func filterTables() (four, six bool, err error) {
	c, err := open()
	if err != nil {
		return false, false, &KernelError{"list tables", err}
	}
	tables, err := c.ListTables()
	if err != nil {
		return false, false, &KernelError{"list tables", err}
	}
	for _, t := range tables {
		four = four || t.Name == filterTable && t.Family == nftables.TableFamilyIPv4
		six = six || t.Name == filterTable && t.Family == nftables.TableFamilyIPv6
	}
	return four || legacyFilter("ip_tables_names"), six || legacyFilter("ip6_tables_names"), nil
}

// legacyFilter returns whether the old iptables has a filter table; only root may read the list.
func legacyFilter(list string) bool {
	text, err := os.ReadFile(filepath.Join(ProcNet, list))
	return err == nil && slices.Contains(strings.Fields(string(text)), filterTable)
}

func (t *IPTables) program(r ipRule) *iptables.IPTables {
	if r.address.Is4() {
		return t.four
	}
	return t.six
}

// Apply inserts the rules that are not there.
func (t *IPTables) Apply() error {
	for _, r := range t.rules {
		there, err := t.program(r).Exists(r.table, r.chain, r.spec...)
		if err == nil && !there {
			err = t.program(r).Insert(r.table, r.chain, 1, r.spec...)
		}
		if err != nil {
			return fmt.Errorf("iptables: insert %s: %w", r, locked(err))
		}
	}
	return nil
}

// Intact returns whether all rules are there.
func (t *IPTables) Intact() (bool, error) {
	for _, r := range t.rules {
		there, err := t.program(r).Exists(r.table, r.chain, r.spec...)
		if err != nil {
			return false, fmt.Errorf("iptables: look for %s: %w", r, locked(err))
		}
		if !there {
			return false, nil
		}
	}
	return true, nil
}

// Rules returns how many rules there are.
func (t *IPTables) Rules() int { return len(t.rules) }

// Withdraw removes the rules: without a lease there is no other way to give the traffic back.
func (t *IPTables) Withdraw() error { return t.Remove() }

// Remove removes the rules, also those that are there more than once. It goes on after an error, and
// returns the first.
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
	const mostCopies = 100
	for range mostCopies {
		there, err := t.program(r).Exists(r.table, r.chain, r.spec...)
		if err != nil || !there {
			return err
		}
		if err := t.program(r).Delete(r.table, r.chain, r.spec...); err != nil {
			return err
		}
	}
	return nil
}

// locked returns the error, and ErrLocked with it if that was the cause.
func locked(err error) error {
	if e := (*iptables.Error)(nil); errors.As(err, &e) && e.ExitStatus() == exitResource && strings.Contains(e.Error(), lockText) {
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}
