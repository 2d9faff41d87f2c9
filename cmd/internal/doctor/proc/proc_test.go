//go:build linux

package proc

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// tree writes files and links below a temporary folder and returns it. A value that begins with
// "-> " is the target of a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		if len(text) > 3 && text[:3] == "-> " {
			err = os.Symlink(text[3:], path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		kit.Must(t, err)
	}
	return root
}

const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n"

// open returns a file system with these files.
func open(t *testing.T, files map[string]string) FS {
	t.Helper()
	fs, err := Open(tree(t, files))
	kit.Must(t, err)
	return fs
}

func TestListeners(t *testing.T) {
	fs := open(t, map[string]string{
		"net/udp": heading +
			"  1: 0A14FEA9:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 101 2 0 5\n" +
			"  2: 0100007F:0035 0200007F:1234 01 00000000:00000000 00:00000000 00000000     0        0 102 2 0 0\n" +
			"  3: 00000000:14E9 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 103 2 0 0\n",
		"net/tcp": "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
			"  0: 00000000:0035 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 201 1 0 100 0 0 10 0\n" +
			"  1: 0100007F:0035 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 202 1 0 100 0 0 10 0\n",
		"net/tcp6": "  sl  local_address remote_address st\n" +
			"  0: 000000FD000000000000000001000000:0035 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 301 1 0\n",
		"7/comm": "dnsmasq\n", "7/fd/3": "-> socket:[101]", "7/fd/4": "-> /dev/null", "7/fd/5": "-> socket:[999]",
		"8/comm": "named\n", "8/fd/3": "-> socket:[301]",
	})
	got, err := fs.Listeners(53)
	kit.Must(t, err)
	want := []Socket{
		{"udp", netip.MustParseAddr("169.254.20.10"), 5, Process{7, "dnsmasq"}, 101},
		{"tcp", netip.MustParseAddr("0.0.0.0"), 0, Process{}, 201},
		{"tcp", netip.MustParseAddr("fd00::1"), 0, Process{8, "named"}, 301},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestListenersBroken(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no table": nil,
		"broken":   {"net/udp": heading + "  1: 0014FEA9FF:0035 0:0 07 0 0 0 0 0 101 2 0 5\n", "net/tcp": ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := open(t, files).Listeners(53); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
}

// TestListenersOfThisProcess reads the real tables of this machine, with a socket of this process.
func TestListenersOfThisProcess(t *testing.T) {
	p, err := net.ListenPacket("udp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	want := p.LocalAddr().(*net.UDPAddr).AddrPort()
	fs, err := Open("/proc")
	kit.Must(t, err)
	sockets, err := fs.Listeners(want.Port())
	kit.Must(t, err)
	i := slices.IndexFunc(sockets, func(s Socket) bool { return s.Network == "udp" && s.Local == want.Addr() })
	if i < 0 || sockets[i].Owner.PID != os.Getpid() {
		t.Fatalf("no socket on %s of process %d among %v", want, os.Getpid(), sockets)
	}
}

func TestCommands(t *testing.T) {
	fs := open(t, map[string]string{
		"self":       "-> 1",
		"1/ns/net":   "-> net:[1]",
		"7/ns/net":   "-> net:[1]",
		"7/cmdline":  "/usr/bin/nodecache\x00-localip\x00169.254.20.10\x00",
		"7/environ":  "A=1\x00B=2\x00",
		"7/comm":     "nodecache\n",
		"8/ns/net":   "-> net:[2]",
		"8/cmdline":  "/usr/bin/nodecache\x00",
		"9/ns/net":   "-> net:[1]",
		"9/cmdline":  "nodecache-other\x00",
		"10/cmdline": "",
		"11/cmdline": "nodecache\x00",
		"12/ns/net":  "-> net:[1]",
		"12/cmdline": "./node-cache\x00",
	})
	got := fs.Commands("nodecache", "node-cache")
	if len(got) != 2 {
		t.Fatalf("got %v, want processes 7 and 12", got)
	}
	c := got[0]
	if c.PID != 7 || c.Name != "nodecache" || !slices.Equal(c.Args[1:], []string{"-localip", "169.254.20.10"}) || !slices.Equal(c.Environment, []string{"A=1", "B=2"}) {
		t.Errorf("got %+v", c)
	}
	if c.Root != fs.path+"/7/root" || c.Dir != fs.path+"/7/cwd" {
		t.Errorf("root %s, working directory %s", c.Root, c.Dir)
	}
	if got[1].PID != 12 || got[1].Name != "?" {
		t.Errorf("got %+v, want process 12, whose name is not known", got[1])
	}
}
