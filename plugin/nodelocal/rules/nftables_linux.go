package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernelWait bounds each exchange with the kernel. Transactions of others are waited for in it: one of
// kube-proxy may hold nftables for a second in a large cluster.
const kernelWait = 5 * time.Second

// NFTables is the table of one interface in the kernel.
type NFTables struct {
	config  Config
	handles map[string][]uint64 // of the rules, by chain, as they were after Apply
}

// NewNFTables returns the table that the configuration describes. It touches nothing.
func NewNFTables(c Config) *NFTables { return &NFTables{config: c} }

// KernelError says what nftables would not do.
type KernelError struct {
	Operation string // what was tried, such as "apply table nearside-nodelocaldns"
	Err       error
}

func (e *KernelError) Error() string { return "nftables: " + e.Operation + ": " + e.Err.Error() }

func (e *KernelError) Unwrap() error { return e.Err }

// open returns a connection for one exchange.
func open() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetDeadline(time.Now().Add(kernelWait))
	}))
}

// Apply puts the table into the kernel in one transaction. A table that is there, of an earlier run
// or another instance, is taken over: its rules are replaced and its leases stay. Where chains or sets
// of another shape are in the way, the whole table is replaced, and where the kernel can't match
// sockets, rules do without.
func (t *NFTables) Apply() error {
	err := t.replace()
	if err != nil && !errors.Is(err, unix.EPERM) && !t.config.withoutSocket {
		t.config.withoutSocket = true
		if t.replace() == nil {
			err = nil
		} else {
			t.config.withoutSocket = false // it was not that
		}
	}
	if err != nil {
		return &KernelError{"apply table " + TableName(t.config.Interface), err}
	}
	t.handles, err = t.read()
	return err
}

// replace replaces the rules or, if that is refused, the table.
func (t *NFTables) replace() error {
	err := t.transaction(false)
	if err != nil && !errors.Is(err, unix.EPERM) {
		err = t.transaction(true)
	}
	return err
}

// transaction sends the table, with new chains and sets if anew.
func (t *NFTables) transaction(anew bool) error {
	c, err := open()
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName(t.config.Interface)})
	if anew {
		c.DelTable(table)
		c.AddTable(table)
	}
	for _, s := range leaseSets(table) {
		if err := c.AddSet(s, nil); err != nil {
			return err
		}
	}
	if !anew {
		if err := t.removeChains(c, table); err != nil {
			return err
		}
	}
	for _, ch := range t.config.chains() {
		t.addChain(c, table, ch)
	}
	return c.Flush()
}

func (t *NFTables) addChain(c *nftables.Conn, table *nftables.Table, ch chain) {
	accept := nftables.ChainPolicyAccept
	to := c.AddChain(&nftables.Chain{
		Name: ch.name, Table: table, Hooknum: hooks[ch.hook], Type: nftables.ChainType(ch.kind),
		Priority: nftables.ChainPriorityRef(nftables.ChainPriority(ch.priority)), Policy: &accept,
	})
	c.FlushChain(to)
	for _, r := range ch.rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: to, Exprs: r.expressions()})
	}
}

// removeChains removes the chains that an earlier version or configuration had and this one has not.
func (t *NFTables) removeChains(c *nftables.Conn, table *nftables.Table) error {
	there, err := chainsOf(table.Name)
	if err != nil {
		return err
	}
	wanted := t.config.chains()
	for _, ch := range there {
		if !slices.ContainsFunc(wanted, func(w chain) bool { return w.name == ch.Name }) {
			c.FlushChain(ch)
			c.DelChain(ch)
		}
	}
	return nil
}

// leaseSets are the sets of the leased addresses.
func leaseSets(table *nftables.Table) []*nftables.Set {
	set := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, KeyType: key, HasTimeout: true, Dynamic: true, Size: leaseSize}
	}
	return []*nftables.Set{set(lease4, nftables.TypeIPAddr), set(lease6, nftables.TypeIP6Addr)}
}

// Intact returns whether the table is in the kernel as Apply left it: the same chains, still attached
// with their policy, and the same rules.
func (t *NFTables) Intact() (bool, error) {
	there, err := t.read()
	if err != nil {
		return false, err
	}
	return t.handles != nil && equal(there, t.handles), nil
}

// Missing returns whether an interface has no table at all.
func Missing(iface string) (bool, error) {
	names, err := Tables()
	return err == nil && !slices.Contains(names, TableName(iface)), err
}

// Unsupported returns whether an error says that the kernel has no nftables, or not enough of it.
func Unsupported(err error) bool {
	for _, e := range []error{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.ENOENT} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func equal(a, b map[string][]uint64) bool {
	if len(a) != len(b) {
		return false
	}
	for name, handles := range a {
		if other, ok := b[name]; !ok || !slices.Equal(handles, other) {
			return false
		}
	}
	return true
}

// Rules returns how many rules the table has in the kernel.
func (t *NFTables) Rules() int {
	n := 0
	for _, h := range t.handles {
		n += len(h)
	}
	return n
}

// read returns the handles of the rules that are in the kernel. A handle is never used twice in a
// table, so that equal handles are the same rules.
func (t *NFTables) read() (map[string][]uint64, error) {
	name := TableName(t.config.Interface)
	chains, err := chainsOf(name)
	if err != nil {
		return nil, err
	}
	handles := make(map[string][]uint64, len(chains))
	for _, ch := range chains {
		if ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept {
			continue // somebody made it drop
		}
		c, err := open()
		if err != nil {
			return nil, &KernelError{"read table " + name, err}
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, &KernelError{"read table " + name, err}
		}
		handles[ch.Name] = []uint64{}
		for _, r := range rules {
			handles[ch.Name] = append(handles[ch.Name], r.Handle)
		}
	}
	return handles, nil
}

// chainsOf returns the chains of a table of ours.
func chainsOf(table string) (all []*nftables.Chain, err error) {
	c, err := open()
	if err != nil {
		return nil, &KernelError{"list chains", err}
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, &KernelError{"list chains", err}
	}
	for _, ch := range chains {
		if ch.Table.Name == table {
			all = append(all, ch)
		}
	}
	return all, nil
}

// Withdraw ends all leases at once.
func (t *NFTables) Withdraw() error {
	c, err := open()
	if err != nil {
		return &KernelError{"withdraw the lease", err}
	}
	for _, s := range leaseSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName(t.config.Interface)}) {
		c.FlushSet(s)
	}
	if err := c.Flush(); err != nil {
		return &KernelError{"withdraw the lease", err}
	}
	return nil
}

// Remove removes the table. One that is not there is no error.
func (t *NFTables) Remove() error { return RemoveTable(TableName(t.config.Interface)) }

// RemoveTable removes a table of family inet. One that is not there is no error.
func RemoveTable(name string) error {
	c, err := open()
	if err == nil {
		// Added first, so that it is there.
		c.DelTable(c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: name}))
		err = c.Flush()
	}
	if err != nil {
		return &KernelError{"remove table " + name, err}
	}
	return nil
}

// Leased returns the addresses that have a lease, with what is left of it.
func Leased(iface string) (map[netip.Addr]time.Duration, error) {
	left := map[netip.Addr]time.Duration{}
	for _, s := range leaseSets(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName(iface)}) {
		c, err := open()
		if err != nil {
			return nil, &KernelError{"read the lease", err}
		}
		elements, err := c.GetSetElements(s)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, &KernelError{"read the lease", err}
		}
		for _, e := range elements {
			if a, ok := netip.AddrFromSlice(e.Key); ok {
				left[a] = e.Expires
			}
		}
	}
	return left, nil
}

// Tables returns the names of the tables that nodecache made here.
func Tables() (names []string, err error) {
	c, err := open()
	if err != nil {
		return nil, &KernelError{"list tables", err}
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, &KernelError{"list tables", err}
	}
	for _, t := range tables {
		if len(t.Name) > len(tablePrefix) && t.Name[:len(tablePrefix)] == tablePrefix {
			names = append(names, t.Name)
		}
	}
	return names, nil
}

// Generation returns the number of nftables' current ruleset, of all tables. It grows with each
// transaction of whomever, so that an unchanged number means unchanged rules.
func Generation() (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return 0, &KernelError{"read the generation", err}
	}
	id, err := generation(c)
	if err := errors.Join(err, c.Close()); err != nil {
		return 0, &KernelError{"read the generation", err}
	}
	return id, nil
}

func generation(c *netlink.Conn) (uint32, error) {
	if err := c.SetDeadline(time.Now().Add(kernelWait)); err != nil {
		return 0, err
	}
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	const header = 4 // struct nfgenmsg
	for _, m := range answers {
		if len(m.Data) < header {
			return 0, fmt.Errorf("answer of %d bytes", len(m.Data))
		}
		attributes, err := netlink.UnmarshalAttributes(m.Data[header:])
		if err != nil {
			return 0, err
		}
		for _, a := range attributes {
			if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
				return uint32(a.Data[0])<<24 | uint32(a.Data[1])<<16 | uint32(a.Data[2])<<8 | uint32(a.Data[3]), nil
			}
		}
	}
	return 0, errors.New("answer without a generation")
}
