package proc

import (
	"compress/gzip"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// tree writes files and links below a temporary folder and returns it. A value that begins with
// "-> " is the target of a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if len(text) > 3 && text[:3] == "-> " {
			err = os.Symlink(text[3:], path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestSysctl(t *testing.T) {
	r := Root{Proc: tree(t, map[string]string{
		"sys/net/core/rmem_max":  "212992\n",
		"sys/net/ipv4/udp_mem":   "100\t200\t300\n",
		"sys/net/ipv4/empty":     "\n",
		"sys/net/ipv4/not_a_num": "yes\n",
	})}
	for _, c := range []struct {
		name string
		want []int64
		err  bool
	}{
		{"net.core.rmem_max", []int64{212992}, false},
		{"net.ipv4.udp_mem", []int64{100, 200, 300}, false},
		{"net.ipv4.empty", nil, true},
		{"net.ipv4.not_a_num", nil, true},
		{"net.ipv4.missing", nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := r.Sysctl(c.name)
			if (err != nil) != c.err || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v, error %t", got, err, c.want, c.err)
			}
		})
	}
}

func TestCounters(t *testing.T) {
	r := Root{Proc: tree(t, map[string]string{
		"self/status":  "Name:\tx\nCapEff:\t0000000000001000\n",
		"net/sockstat": "sockets: used 14\nTCP: inuse 1 orphan 0 tw 9 alloc 1 mem 109\nUDP: inuse 3 mem 7\nUDPLITE: inuse 0\n",
		"net/netstat":  "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 1 42\nIpExt: InNoRoutes\nIpExt: 3\n",
	})}
	if got, err := r.Capabilities(); err != nil || got != 1<<12 {
		t.Errorf("capabilities: got %#x, %v", got, err)
	}
	if got, err := r.SocketMemory(); err != nil || got != 7 {
		t.Errorf("memory of UDP sockets: got %d, %v; want 7", got, err)
	}
	if got, err := r.Counter("netstat", "TcpExt", "IPReversePathFilter"); err != nil || got != 42 {
		t.Errorf("counter: got %d, %v; want 42", got, err)
	}
	for _, c := range [][3]string{{"netstat", "TcpExt", "InNoRoutes"}, {"netstat", "None", "InNoRoutes"}, {"snmp", "Udp", "InErrors"}} {
		if got, err := r.Counter(c[0], c[1], c[2]); err == nil {
			t.Errorf("%v: got %d, want an error", c, got)
		}
	}
}

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"

func TestListeners(t *testing.T) {
	r := Root{Proc: tree(t, map[string]string{
		"net/udp": heading +
			"  1: 0A14FEA9:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 101 2 0 5\n" +
			"  2: 0100007F:0035 0200007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 102 2 0 0\n" +
			"  3: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 103 2 0 0\n",
		"net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
			"  0: 00000000:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 201 1 0 100 0 0 10 0\n" +
			"  1: 0100007F:0035 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 202 1 0 100 0 0 10 0\n",
		"net/tcp6": "  sl  local_address remote_address st\n" +
			"  0: 000000FD000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 301 1 0\n",
	})}
	got, err := r.Listeners(53)
	if err != nil {
		t.Fatal(err)
	}
	want := []Socket{
		{"udp", netip.MustParseAddrPort("169.254.20.10:53"), 101, 5},
		{"tcp", netip.MustParseAddrPort("0.0.0.0:53"), 201, 0},
		{"tcp", netip.MustParseAddrPort("[fd00::1]:53"), 301, 0},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestListenersBroken(t *testing.T) {
	for name, row := range map[string]string{
		"address of 3 bytes":     "  1: 0014FEA9FF:0035 0:0 07 0 0 0 0 0 101 2 0 5\n",
		"address without a port": "  1: 0A14FEA9 0:0 07 0 0 0 0 0 101 2 0 5\n",
		"port too large":         "  1: 0A14FEA9:10035 0:0 07 0 0 0 0 0 101 2 0 5\n",
		"inode is a word":        "  1: 0A14FEA9:0035 0:0 07 0 0 0 0 0 x 2 0 5\n",
		"drops is a word":        "  1: 0A14FEA9:0035 0:0 07 0 0 0 0 0 101 2 0 x\n",
	} {
		t.Run(name, func(t *testing.T) {
			r := Root{Proc: tree(t, map[string]string{"net/udp": heading + row, "net/tcp": ""})}
			if got, err := r.Listeners(53); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
	t.Run("no table", func(t *testing.T) {
		if got, err := (Root{Proc: t.TempDir()}).Listeners(53); err == nil {
			t.Errorf("got %v, want an error", got)
		}
	})
}

// The real tables of this machine, with sockets of this process.
func TestListenersOfThisProcess(t *testing.T) {
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	want := p.LocalAddr().(*net.UDPAddr).AddrPort()
	sockets, err := Host().Listeners(want.Port())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(sockets, func(s Socket) bool { return s.Network == "udp" && s.Local == want })
	if i < 0 {
		t.Fatalf("no socket on %s among %v", want, sockets)
	}
	owner := Host().Owners(context.Background(), sockets)[sockets[i].Inode]
	if owner.PID != os.Getpid() {
		t.Errorf("owner: got %+v, want this process, %d", owner, os.Getpid())
	}
}

func TestOwners(t *testing.T) {
	r := Root{Proc: tree(t, map[string]string{
		"7/comm": "dnsmasq\n", "7/fd/3": "-> socket:[101]", "7/fd/4": "-> /dev/null", "7/fd/5": "-> socket:[999]",
		"8/comm": "named\n", "8/fd/3": "-> socket:[102]", "net/udp": "",
	})}
	got := r.Owners(context.Background(), []Socket{{Inode: 101}, {Inode: 102}, {Inode: 103}})
	if len(got) != 2 || got[101] != (Process{7, "dnsmasq"}) || got[102] != (Process{8, "named"}) {
		t.Errorf("got %v", got)
	}
}

func TestCommands(t *testing.T) {
	root := tree(t, map[string]string{
		"self/ns/net":  "-> net:[1]",
		"7/ns/net":     "-> net:[1]",
		"7/cmdline":    "/usr/bin/nodecache\x00-localip\x00169.254.20.10\x00",
		"7/environ":    "A=1\x00B=2\x00",
		"7/comm":       "nodecache\n",
		"8/ns/net":     "-> net:[2]",
		"8/cmdline":    "/usr/bin/nodecache\x00",
		"9/ns/net":     "-> net:[1]",
		"9/cmdline":    "nodecache-other\x00",
		"10/cmdline":   "",
		"11/cmdline":   "nodecache\x00",
		"12/ns/net":    "-> net:[1]",
		"12/cmdline":   "./node-cache\x00",
		"7/root/etc/x": "",
		"7/cwd/y":      "",
	})
	got := Root{Proc: root}.Commands("nodecache", "node-cache")
	if len(got) != 2 {
		t.Fatalf("got %v, want processes 7 and 12", got)
	}
	slices.SortFunc(got, func(a, b Command) int { return a.PID - b.PID })
	c := got[0]
	if c.PID != 7 || c.Name != "nodecache" || !slices.Equal(c.Args[1:], []string{"-localip", "169.254.20.10"}) || !slices.Equal(c.Environment, []string{"A=1", "B=2"}) {
		t.Errorf("got %+v", c)
	}
	for path, want := range map[string]string{"/etc/x": root + "/7/root/etc/x", "y": root + "/7/cwd/y"} {
		if got := c.File(path); got != want {
			t.Errorf("file %s: got %s, want %s", path, got, want)
		}
	}
	if got[1].PID != 12 || got[1].Name != "?" {
		t.Errorf("got %+v, want process 12, whose name is not known", got[1])
	}
}

func TestFeatures(t *testing.T) {
	dummy := Feature{Option: "DUMMY", Module: "dummy", Symbol: "dummy_xmit"}
	part := Feature{Option: "NF_CONNTRACK_ZONES"}
	for _, c := range []struct {
		name    string
		files   map[string]string
		feature Feature
		want    Presence
	}{
		{"nothing can be read", nil, dummy, Unknown},
		{"a part, nothing can be read", nil, part, Unknown},
		{"loaded", map[string]string{"proc/modules": "veth 4096 0 - Live 0x0\ndummy 16384 0 - Live 0x0\n"}, dummy, Present},
		{"symbol of another module", map[string]string{"proc/kallsyms": "0000 t dummy_xmit_other\n"}, dummy, Unknown},
		{"symbol", map[string]string{"proc/kallsyms": "0000 t dummy_xmit\n"}, dummy, Present},
		{"symbol of a module, changed by the compiler", map[string]string{"proc/kallsyms": "0000 t dummy_xmit.llvm.12\t[dummy]\n"}, dummy, Present},
		{"configured in", map[string]string{"boot/config-6.1": "CONFIG_DUMMY=y\n"}, dummy, Present},
		{"configured as a module", map[string]string{"boot/config-6.1": "CONFIG_DUMMY=m\n"}, dummy, Loadable},
		{"configured out", map[string]string{"boot/config-6.1": "CONFIG_NET=y\n# CONFIG_DUMMY is not set\n"}, dummy, Absent},
		{"not in the configuration", map[string]string{"boot/config-6.1": "CONFIG_NET=y\n"}, dummy, Absent},
		{"module is installed", map[string]string{"modules/6.1/modules.dep": "kernel/drivers/net/dummy.ko.xz:\n"}, dummy, Loadable},
		{"module is not installed", map[string]string{"modules/6.1/modules.dep": "kernel/drivers/net/veth.ko:\n", "boot/config-6.1": "CONFIG_DUMMY=m\n"}, dummy, Absent},
		{"modules of another kernel", map[string]string{"modules/6.2/modules.dep": "kernel/drivers/net/dummy.ko:\n"}, dummy, Unknown},
		{"built in", map[string]string{"modules/6.1/modules.builtin": "kernel/drivers/net/dummy.ko\n"}, dummy, Present},
		{"a module written with a dash", map[string]string{"modules/6.1/modules.builtin": "kernel/net/nf-tables.ko\n"}, Feature{Module: "nf_tables"}, Present},
		{"a part, configured in", map[string]string{"boot/config-6.1": "CONFIG_NF_CONNTRACK_ZONES=y\n"}, part, Present},
		{"a part, configured out", map[string]string{"boot/config-6.1": "CONFIG_NET=y\n"}, part, Absent},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"proc/sys/kernel/osrelease": "6.1\n"}
			for name, text := range c.files {
				files[name] = text
			}
			root := tree(t, files)
			r := Root{Proc: root + "/proc", Modules: root + "/modules", Boot: root + "/boot"}
			if got := r.Features([]Feature{c.feature})[0]; got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

// A configuration is compressed where the kernel itself shows it.
func TestFeaturesCompressed(t *testing.T) {
	root := tree(t, map[string]string{"sys/kernel/osrelease": "6.1\n"})
	file, err := os.Create(filepath.Join(root, "config.gz"))
	if err != nil {
		t.Fatal(err)
	}
	w := gzip.NewWriter(file)
	if _, err := w.Write([]byte("CONFIG_DUMMY=y\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	r := Root{Proc: root, Modules: root, Boot: root}
	if got := r.Features([]Feature{{Option: "DUMMY", Module: "dummy"}})[0]; got != Present {
		t.Errorf("got %d, want %d", got, Present)
	}
}

// Whatever this machine has, lo's driver and this very process are there.
func TestHost(t *testing.T) {
	r := Host()
	if release, err := r.Release(); err != nil || release == "" {
		t.Errorf("release: got %q, %v", release, err)
	}
	if _, err := r.Capabilities(); err != nil {
		t.Error(err)
	}
	if name := r.name(os.Getpid()); name == "?" {
		t.Errorf("process %s has no name", strconv.Itoa(os.Getpid()))
	}
}
