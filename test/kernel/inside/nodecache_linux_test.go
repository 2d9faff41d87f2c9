package inside

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"

	"github.com/nearside-dns/nearside/test/kit"
)

// The default names of nodecache's interface and table.
const (
	interfaceName = "nodelocaldns"
	tableName     = "nearside-" + interfaceName
)

// corefile answers every name itself, so that no upstream is needed.
const corefile = `.:53 {
	nodelocal 169.254.20.10 fd00::a
	bind 169.254.20.10 fd00::a
	template IN A . {
		answer "{{ .Name }} 5 IN A 192.0.2.1"
	}
}
`

// wait bounds a wait on an emulated processor of a loaded host; step is the time between checks.
const (
	wait = 30 * time.Second
	step = 100 * time.Millisecond
)

// eventually waits until a condition is true. Otherwise the test fails with the last state.
func eventually(t *testing.T, seen func() string, isMet func() bool) {
	t.Helper()
	for end := time.Now().Add(wait); !isMet(); time.Sleep(step) {
		if time.Now().After(end) {
			t.Fatalf("after %v still %s", wait, seen())
		}
	}
}

// TestNodecache starts nodecache, kills it, starts it again and stops it gracefully, and reads the kernel's state after
// each step.
func TestNodecache(t *testing.T) {
	needsMachine(t)
	conf := kit.File(t, "Corefile", corefile)
	first := start(t, conf)
	leasesAre(t, addresses)
	before := node(t)
	answered(t)
	untracked(t)

	end(t, first, syscall.SIGKILL)
	leasesAre(t, nil)
	if after := node(t); after != before {
		t.Errorf("after a kill the node has %+v, before it had %+v", after, before)
	}

	second := start(t, conf)
	leasesAre(t, addresses)
	if after := node(t); after != before {
		t.Errorf("after a restart the node has %+v, before it had %+v", after, before)
	}
	answered(t)

	if err := end(t, second, syscall.SIGTERM); err != nil {
		t.Errorf("the end: %v", err)
	}
	nothingLeft(t)
}

// start starts nodecache. Its output is logged if the test fails.
func start(t *testing.T, conf string) *exec.Cmd {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command("nodecache", "-conf", conf)
	cmd.Stdout, cmd.Stderr = &out, &out
	kit.Must(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = end(t, cmd, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("nodecache printed:\n%s", out.Bytes())
		}
	})
	return cmd
}

// end sends a signal, waits for the process and returns its exit.
func end(t *testing.T, cmd *exec.Cmd, signal os.Signal) error {
	t.Helper()
	if err := cmd.Process.Signal(signal); err != nil {
		t.Errorf("%v: %v", signal, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(wait):
		t.Fatalf("nodecache did not end within %v of %v", wait, signal)
		return nil
	}
}

// state is nodecache's state in the kernel. It is comparable.
type state struct {
	index  int // of the interface: another index means that it was created again
	tables int
	chains int
	rules  int
}

// node reads the state, and fails the test if the interface is not of the expected kind, or not up, or has other
// addresses.
func node(t *testing.T) state {
	t.Helper()
	name := interfaceName
	if *carrier == "lo" {
		name = "lo"
	}
	link, err := netlink.LinkByName(name)
	kit.Must(t, err)
	if link.Type() != *carrier && name != "lo" {
		t.Errorf("the interface is a %s", link.Type())
	}
	if link.Attrs().RawFlags&syscall.IFF_UP == 0 {
		t.Error("the interface is down")
	}
	if got := addressesOf(t, link); !slices.Equal(got, addresses) {
		t.Errorf("addresses %v, want %v", got, addresses)
	}
	s := state{index: link.Attrs().Index, tables: len(tables(t))}
	c := connect(t)
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	kit.Must(t, err)
	for _, chain := range chains {
		if chain.Table.Name != tableName {
			continue
		}
		rules, err := c.GetRules(chain.Table, chain)
		kit.Must(t, err)
		s.chains++
		s.rules += len(rules)
	}
	if s.tables != 1 || s.rules == 0 {
		t.Errorf("the node has %+v, want one table with rules", s)
	}
	return s
}

func connect(t *testing.T) *nftables.Conn {
	t.Helper()
	c, err := nftables.New()
	kit.Must(t, err)
	return c
}

// tables returns the names of all tables of nftables. Only nodecache creates tables here.
func tables(t *testing.T) (names []string) {
	t.Helper()
	all, err := connect(t).ListTables()
	kit.Must(t, err)
	for _, table := range all {
		names = append(names, table.Name)
	}
	return names
}

// leased returns the addresses with a lease: the elements of the table's sets that have not expired. While nodecache
// replaces the table, a set may be missing between two queries; package nftables does not distinguish that from other
// errors, so a few errors are ignored.
func leased(t *testing.T) []netip.Addr {
	t.Helper()
	for forgiven := 0; ; forgiven++ {
		all, err := elements(t)
		if err == nil {
			return all
		}
		if forgiven == 5 {
			t.Fatal(err)
		}
		time.Sleep(step)
	}
}

func elements(t *testing.T) (all []netip.Addr, err error) {
	t.Helper()
	if !slices.Contains(tables(t), tableName) {
		return nil, nil
	}
	c := connect(t)
	sets, err := c.GetSets(&nftables.Table{Name: tableName, Family: nftables.TableFamilyINet})
	if err != nil {
		return nil, err
	}
	for _, set := range sets {
		if !set.HasTimeout {
			continue
		}
		elements, err := c.GetSetElements(set)
		if err != nil {
			return nil, err
		}
		for _, e := range elements {
			a, ok := netip.AddrFromSlice(e.Key)
			if !ok {
				t.Fatalf("set %s has the element %x", set.Name, e.Key)
			}
			all = append(all, a)
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all, nil
}

// leasesAre waits until exactly these addresses have a lease.
func leasesAre(t *testing.T, want []netip.Addr) {
	t.Helper()
	seen := func() string { return fmt.Sprintf("the leases of %v, not of %v", leased(t), want) }
	eventually(t, seen, func() bool { return slices.Equal(leased(t), want) })
}

// ask sends one query to an address and returns an error if the answer is not the template's.
func ask(network string, to netip.Addr) error {
	r, err := kit.Exchange(network, netip.AddrPortFrom(to, 53).String(), new(dns.Msg).SetQuestion("host.example.", dns.TypeA))
	if err != nil {
		return err
	}
	if len(r.Answer) == 1 {
		if a, ok := r.Answer[0].(*dns.A); ok && a.A.String() == "192.0.2.1" {
			return nil
		}
	}
	return errors.New("not the answer of the Corefile: " + r.String())
}

// answered queries each address over UDP and over TCP.
func answered(t *testing.T) {
	t.Helper()
	for _, a := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			if err := ask(network, a); err != nil {
				t.Errorf("%s over %s: %v", a, network, err)
			}
		}
	}
}

// untracked checks that queries leave no entries in the table of connection tracking. A query does if it arrives while
// the lease has expired on a loaded host, so there are several attempts.
func untracked(t *testing.T) {
	t.Helper()
	var left []string
	for range 5 {
		kit.Must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		answered(t)
		if left = tracked(t, addresses); len(left) == 0 {
			break
		}
	}
	if len(left) > 0 {
		t.Errorf("connection tracking has %q", left)
	}
	// An address that no rule names proves that connection tracking works here.
	other := netip.MustParseAddr("127.0.0.1")
	if err := ask("udp", other); err == nil {
		t.Errorf("something answers on %s", other)
	}
	if len(tracked(t, []netip.Addr{other})) == 0 {
		t.Errorf("connection tracking has no entry for %s", other)
	}
}

// tracked returns the entries of connection tracking whose first packet went to one of the addresses.
func tracked(t *testing.T, to []netip.Addr) (all []string) {
	t.Helper()
	for _, family := range []netlink.InetFamily{syscall.AF_INET, syscall.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		kit.Must(t, err)
		for _, f := range flows {
			a, ok := netip.AddrFromSlice(f.Forward.DstIP)
			if ok && slices.Contains(to, a.Unmap()) {
				all = append(all, f.String())
			}
		}
	}
	return all
}

// nothingLeft checks that interface, addresses and table are removed.
func nothingLeft(t *testing.T) {
	t.Helper()
	_, err := netlink.LinkByName(interfaceName)
	if notFound := new(netlink.LinkNotFoundError); !errors.As(err, notFound) {
		t.Errorf("looking for the interface: %v, want that it is not there", err)
	}
	if names := tables(t); len(names) > 0 {
		t.Errorf("tables %q are left", names)
	}
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	kit.Must(t, err)
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && slices.Contains(addresses, ip.Unmap()) {
			t.Errorf("address %v is left", a)
		}
	}
}
