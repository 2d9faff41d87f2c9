package rules

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// kernelWait is the max. time of each exchange with the kernel. It includes the wait for transactions of other
// programs: one of kube-proxy may lock nftables for a second in a large cluster.
const kernelWait = 5 * time.Second

// KernelError is the error of an operation of nftables.
type KernelError struct {
	Operation string // such as "apply table nearside-nodelocaldns"
	Err       error
}

func (e *KernelError) Error() string { return "nftables: " + e.Operation + ": " + e.Err.Error() }

func (e *KernelError) Unwrap() error { return e.Err }

// open returns a connection to nftables. Each exchange on it ends with the context or after kernelWait.
func open(ctx context.Context) (*nftables.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(deadline(ctx)) }))
}

// deadline returns the end of an exchange with the kernel.
func deadline(ctx context.Context) time.Time {
	until := time.Now().Add(kernelWait)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		return d
	}
	return until
}

// Exchange calls f with a connection to nftables. Its error is a *KernelError.
func Exchange[T any](ctx context.Context, operation string, f func(*nftables.Conn) (T, error)) (result T, err error) {
	c, err := open(ctx)
	if err == nil {
		result, err = f(c)
	}
	if err != nil {
		return result, &KernelError{operation, err}
	}
	return result, nil
}

// transact applies the changes that f queues, in one transaction. With an error of f it applies none.
func transact(ctx context.Context, operation string, f func(*nftables.Conn) error) error {
	_, err := Exchange(ctx, operation, func(c *nftables.Conn) (none struct{}, err error) {
		if err = f(c); err == nil {
			err = c.Flush()
		}
		return none, err
	})
	return err
}

// NFTables is the table of one interface in the kernel.
type NFTables struct {
	config  Config
	handles map[string][]uint64 // of the rules by chain, as Apply left them
}

// NewNFTables returns the table of a configuration. It changes nothing in the kernel.
func NewNFTables(c Config) *NFTables { return &NFTables{config: c} }

// SetReplicas sets the replicas for the next Apply, and returns whether they have changed: then Intact is false until Apply.
func (t *NFTables) SetReplicas(all []netip.Addr) (changed bool) {
	if slices.Equal(t.config.Replicas, all) {
		return false
	}
	t.config.Replicas, t.handles = all, nil
	return true
}

// inetTable returns a table of family inet.
func inetTable(name string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: name}
}

// Apply creates or replaces the table in one transaction. A table of an earlier run or another instance keeps its
// leases, and its rules are replaced. If its chains or sets have another shape, the whole table is replaced. If the
// kernel lacks features, the rules are applied without them.
func (t *NFTables) Apply() error {
	err := t.replace()
	if err == nil {
		t.handles, err = t.read()
	}
	return err
}

// Lacking describes the features that the kernel lacks: the last Apply made the rules without them.
func (t *NFTables) Lacking() (all []string) {
	for _, f := range []struct {
		feature
		text string
	}{
		{sockets, "the match of sockets (nft_socket): a killed server keeps the lease for up to a second"},
		{routes, "the lookup of routes (nft_fib_inet): queries that a rule of routing directs elsewhere are untracked as well"},
		{references, "named counters (nft_objref): a lease under which no query of a pod arrives does not end"},
	} {
		if t.config.without&f.feature != 0 {
			all = append(all, f.text)
		}
	}
	return all
}

// replace replaces the rules. If the kernel refuses them, it replaces the rules, or else the whole table, without any feature,
// and then adds the features one by one: each refusal takes long, since the kernel searches for a module.
func (t *NFTables) replace() error {
	err := t.transaction(false)
	if err == nil || errors.Is(err, unix.EPERM) {
		return err
	}
	before := t.config.without
	t.config.without = sockets | routes | references
	if t.transaction(false) != nil {
		if err := t.transaction(true); err != nil {
			t.config.without = before // the cause is not a missing feature
			return err
		}
	}
	for _, f := range []feature{sockets, routes, references} {
		t.config.without &^= f
		if t.transaction(false) != nil {
			t.config.without |= f
		}
	}
	return nil
}

// transaction applies the table, with new chains and sets if anew.
func (t *NFTables) transaction(anew bool) error {
	name := TableName(t.config.Interface)
	return transact(context.Background(), "apply table "+name, func(c *nftables.Conn) error {
		table := c.AddTable(inetTable(name))
		if anew {
			c.DelTable(table)
			c.AddTable(table)
		}
		for _, s := range leaseSets(table) {
			if err := c.AddSet(s, nil); err != nil {
				return err
			}
		}
		for _, name := range t.config.counters() {
			c.AddObj(&nftables.CounterObj{Table: table, Name: name}) // an existing counter keeps its value
		}
		if !anew {
			if err := t.removeChains(c, table); err != nil {
				return err
			}
		}
		for _, ch := range t.config.chains() {
			addChain(c, table, ch)
		}
		return nil
	})
}

func addChain(c *nftables.Conn, table *nftables.Table, ch chain) {
	accept := nftables.ChainPolicyAccept
	added := c.AddChain(&nftables.Chain{
		Name: ch.name, Table: table, Hooknum: hooks[ch.hook], Type: ch.kind, Priority: &ch.priority.value, Policy: &accept,
	})
	c.FlushChain(added)
	for _, r := range ch.rules {
		c.AddRule(&nftables.Rule{Table: table, Chain: added, Exprs: r.expressions()})
	}
}

// removeChains removes chains of an earlier version or configuration.
func (t *NFTables) removeChains(c *nftables.Conn, table *nftables.Table) error {
	present, err := chainsOf(table.Name)
	if err != nil {
		return err
	}
	wanted := t.config.chains()
	for _, ch := range present {
		if !slices.ContainsFunc(wanted, func(w chain) bool { return w.name == ch.Name }) {
			c.FlushChain(ch)
			c.DelChain(ch)
		}
	}
	return nil
}

// Intact returns whether the table is in the kernel as Apply left it: the same chains, still attached with their
// policy, and the same rules.
func (t *NFTables) Intact() (bool, error) {
	present, err := t.read()
	if err != nil {
		return false, err
	}
	return t.handles != nil && maps.EqualFunc(present, t.handles, slices.Equal[[]uint64]), nil
}

// Missing returns whether an interface has no table at all.
func Missing(iface string) (bool, error) {
	names, err := Tables()
	return err == nil && !slices.Contains(names, TableName(iface)), err
}

// Unsupported returns whether the cause of an error is a kernel without nftables or without a part of it.
func Unsupported(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT, unix.EINVAL, unix.ENOENT},
		func(e unix.Errno) bool { return errors.Is(err, e) })
}

// Rules returns the number of rules of the table in the kernel.
func (t *NFTables) Rules() int {
	n := 0
	for _, h := range t.handles {
		n += len(h)
	}
	return n
}

// changedPolicy stands for the rules of a chain with another policy than accept, which another program has set. No rule has
// this handle.
const changedPolicy = 0

// read returns the handles of the rules in the kernel by chain. The kernel uses a handle only once in a table, so
// that equal handles are the same rules.
func (t *NFTables) read() (map[string][]uint64, error) {
	name := TableName(t.config.Interface)
	chains, err := chainsOf(name)
	if err != nil {
		return nil, err
	}
	return Exchange(context.Background(), "read table "+name, func(c *nftables.Conn) (map[string][]uint64, error) {
		handles := make(map[string][]uint64, len(chains))
		for _, ch := range chains {
			if ch.Policy != nil && *ch.Policy != nftables.ChainPolicyAccept {
				handles[ch.Name] = []uint64{changedPolicy}
				continue
			}
			rules, err := c.GetRules(ch.Table, ch)
			if err != nil {
				return nil, err
			}
			handles[ch.Name] = []uint64{}
			for _, r := range rules {
				handles[ch.Name] = append(handles[ch.Name], r.Handle)
			}
		}
		return handles, nil
	})
}

// chainsOf returns the chains of a table of family inet.
func chainsOf(table string) ([]*nftables.Chain, error) {
	all, err := Exchange(context.Background(), "list chains", func(c *nftables.Conn) ([]*nftables.Chain, error) {
		return c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	})
	return slices.DeleteFunc(all, func(ch *nftables.Chain) bool { return ch.Table.Name != table }), err
}

// Withdraw ends all leases at once.
func (t *NFTables) Withdraw() error { return endLeases(t.config.Interface, lease4, lease6) }

// endLeases ends the leases of the named sets at once.
func endLeases(iface string, sets ...string) error {
	return transact(context.Background(), "end the lease", func(c *nftables.Conn) error {
		for _, name := range sets {
			c.FlushSet(&nftables.Set{Table: inetTable(TableName(iface)), Name: name})
		}
		return nil
	})
}

// EndLease ends the leases of all addresses of a's family at once.
func EndLease(iface string, a netip.Addr) error { return endLeases(iface, leaseSet(a)) }

// Traffic has the numbers of packets of pods to leased addresses, of one flow.
type Traffic struct {
	LetIn   uint64 // at the begin of the host's processing
	Arrived uint64 // after the packet filters of all programs
}

// ReadTraffic returns the traffic of an interface by flow, such as udp4; none if the rules do not count it.
func ReadTraffic(iface string) (map[string]Traffic, error) {
	objects, err := Exchange(context.Background(), "read the counters", func(c *nftables.Conn) ([]nftables.Obj, error) {
		return c.GetObjects(inetTable(TableName(iface)))
	})
	all := map[string]Traffic{}
	for _, o := range objects {
		counter, ok := o.(*nftables.CounterObj)
		if !ok {
			continue
		}
		if flow, is := strings.CutPrefix(counter.Name, letInPrefix); is {
			t := all[flow]
			t.LetIn = counter.Packets
			all[flow] = t
		}
		if flow, is := strings.CutPrefix(counter.Name, arrivedPrefix); is {
			t := all[flow]
			t.Arrived = counter.Packets
			all[flow] = t
		}
	}
	return all, err
}

// Remove removes the table. It is no error if the table is missing.
func (t *NFTables) Remove() error { return RemoveTable(TableName(t.config.Interface)) }

// RemoveTable removes a table of family inet. It is no error if the table is missing.
func RemoveTable(name string) error {
	return transact(context.Background(), "remove table "+name, func(c *nftables.Conn) error {
		c.DelTable(c.AddTable(inetTable(name))) // added first, as a missing table can't be deleted
		return nil
	})
}

// Leased returns the leased addresses of an interface, with the time until the lease expires.
func Leased(iface string) (map[netip.Addr]time.Duration, error) {
	elements, err := Exchange(context.Background(), "read the lease", func(c *nftables.Conn) ([]nftables.SetElement, error) {
		return elementsOf(c, nftables.TableFamilyINet, TableName(iface), lease4, lease6)
	})
	left := make(map[netip.Addr]time.Duration, len(elements))
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			left[a] = e.Expires
		}
	}
	return left, err
}

// elementsOf returns the elements of a table's sets with these names; none if the table is missing. It lists tables and
// sets first, as the error of google/nftables for a missing one does not wrap ENOENT.
func elementsOf(c *nftables.Conn, family nftables.TableFamily, table string, names ...string) (all []nftables.SetElement, err error) {
	tables, err := c.ListTablesOfFamily(family)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == table })
	if i < 0 {
		return nil, nil
	}
	sets, err := c.GetSets(tables[i])
	if err != nil {
		return nil, err
	}
	for _, s := range sets {
		if !slices.Contains(names, s.Name) {
			continue
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, err
		}
		all = append(all, elements...)
	}
	return all, nil
}

// Tables returns the names of nodecache's tables in the kernel.
func Tables() (names []string, err error) {
	tables, err := Exchange(context.Background(), "list tables", func(c *nftables.Conn) ([]*nftables.Table, error) {
		return c.ListTablesOfFamily(nftables.TableFamilyINet)
	})
	for _, t := range tables {
		if strings.HasPrefix(t.Name, tablePrefix) && t.Name != tablePrefix {
			names = append(names, t.Name)
		}
	}
	return names, err
}
