package dropin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/filewatch"
	"github.com/nearside-dns/nearside/test/kit"
)

// hostFiles makes files and, where a text begins with "->", symbolic links below a folder.
func hostFiles(t *testing.T, host string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(host, name)
		kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		target, link := strings.CutPrefix(text, "->")
		var err error
		if link {
			err = os.Symlink(target, path+".new")
		} else {
			err = os.WriteFile(path+".new", []byte(text), 0o600)
		}
		if err == nil {
			err = os.Rename(path+".new", path) // as systemd-resolved and NetworkManager do
		}
		kit.Must(t, err)
	}
}

// TestHostResolvConf has the node's files mounted in a container, whose own resolv.conf is a copy from the start of the pod.
// Changes on the node, by rename, are noticed, also through symbolic links.
func TestHostResolvConf(t *testing.T) {
	type files = map[string]string
	for _, tc := range []struct {
		name          string
		before, after files
		first, second string // the server
		message       string
	}{
		{"plain file", files{"etc/resolv.conf": "nameserver 10.1.0.1\n"}, files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.1.0.1", "10.1.0.2", ""},
		{"stub of systemd-resolved", files{"etc/resolv.conf": "->../run/systemd/resolve/stub-resolv.conf", "run/systemd/resolve/stub-resolv.conf": "nameserver 127.0.0.53\n", "run/systemd/resolve/resolv.conf": "nameserver 10.1.0.1\n"},
			files{"run/systemd/resolve/resolv.conf": "nameserver 10.1.0.2\n"}, "10.1.0.1", "10.1.0.2", ""},
		{"absolute link", files{"etc/resolv.conf": "->/run/systemd/resolve/resolv.conf", "run/systemd/resolve/resolv.conf": "nameserver 10.1.0.1\n"},
			files{"run/systemd/resolve/resolv.conf": "nameserver 10.1.0.2\n"}, "10.1.0.1", "10.1.0.2", ""},
		{"two links and /var/run", files{"etc/resolv.conf": "->/etc/resolvconf.link", "etc/resolvconf.link": "->/var/run/NetworkManager/resolv.conf", "run/NetworkManager/resolv.conf": "nameserver 10.1.0.1\n"},
			files{"run/NetworkManager/resolv.conf": "nameserver 10.1.0.2\n"}, "10.1.0.1", "10.1.0.2", ""},
		{"link replaced by a file", files{"etc/resolv.conf": "->../run/systemd/resolve/resolv.conf", "run/systemd/resolve/resolv.conf": "nameserver 10.1.0.1\n"},
			files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.1.0.1", "10.1.0.2", ""},
		{"absolute link replaced by another absolute link", files{"etc/resolv.conf": "->/run/systemd/resolve/resolv.conf", "run/systemd/resolve/resolv.conf": "nameserver 10.1.0.1\n", "run/NetworkManager/resolv.conf": "nameserver 10.1.0.2\n"},
			files{"etc/resolv.conf": "->/run/NetworkManager/resolv.conf"}, "10.1.0.1", "10.1.0.2", ""},
		{"link to a folder that is not mounted", files{"etc/resolv.conf": "->../run/NetworkManager/resolv.conf"},
			files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.0.0.2", "10.1.0.2", "its copy from the start of the pod is"},
		{"loopback only", files{"etc/resolv.conf": "nameserver 127.0.0.1\n"},
			files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.0.0.2", "10.1.0.2", "etc/resolv.conf names only 127.0.0.1"},
		{"no file", files{"etc/hostname": "node\n"}, files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.0.0.2", "10.1.0.2", "no such file"},
		{"loop", files{"etc/resolv.conf": "->resolv.conf"}, files{"etc/resolv.conf": "nameserver 10.1.0.2\n"}, "10.0.0.2", "10.1.0.2", "too many levels of symbolic links"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, map[string]string{inPod: "10.96.0.1"}) // its copy has 10.0.0.2
			hostFiles(t, n.host, tc.before)
			conf := filepath.Join(t.TempDir(), "Corefile")
			kit.Write(t, conf, ".:53 {\n    forward . "+n.resolvConf+"\n}\n")
			forwards := func() string {
				t.Helper()
				got, err := n.Source(conf, reader)
				kit.Must(t, err)
				return strings.Join(got.Facts.Forward[2].Servers, " ")
			}
			// The messages below are those of the second rendering; TestKubeletResolvConf has those of the first.
			for range 2 { // the second time as at the start of the watcher
				if got := forwards(); got != tc.first {
					t.Errorf("before the change the server is %s, want %s", got, tc.first)
				}
			}
			if (len(n.logged) == 0) != (tc.message == "") || tc.message != "" && !strings.Contains(n.logged[0].text, tc.message) {
				t.Errorf("messages %v, want %q", n.logged, tc.message)
			}
			changes := make(chan struct{}, 100)
			w := &filewatch.Watcher{Paths: n.watched, Every: time.Hour, Settle: 20 * time.Millisecond, Changed: func() { changes <- struct{}{} }}
			ctx, stop := context.WithCancel(t.Context())
			var watch sync.WaitGroup
			watch.Go(func() { w.Run(ctx) })
			defer watch.Wait()
			defer stop()
			<-changes // the first call is without a change
			hostFiles(t, n.host, tc.after)
			select {
			case <-changes:
			case <-time.After(10 * time.Second):
				t.Fatal("no notification of the change")
			}
			if got := forwards(); got != tc.second {
				t.Errorf("after the change the server is %s, want %s", got, tc.second)
			}
		})
	}
}

// TestHostResolvConfBroken removes the server from the node's file: the servers in use stay, since the container's copy is
// older.
func TestHostResolvConfBroken(t *testing.T) {
	n := node(t, map[string]string{inPod: "10.96.0.1"})
	conf := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, conf, ".:53 {\n    forward . "+n.resolvConf+"\n}\n")
	hostFiles(t, n.host, map[string]string{"etc/resolv.conf": "nameserver 10.1.0.1\n"})
	if _, err := n.Source(conf, reader); err != nil {
		t.Fatal(err)
	}
	hostFiles(t, n.host, map[string]string{"etc/resolv.conf": "nameserver 127.0.0.1\n"})
	if got, err := n.Source(conf, reader); err == nil || !strings.Contains(err.Error(), "names only 127.0.0.1") {
		t.Errorf("error %v, text\n%s", err, got.Text)
	}
}

// TestCopyOfResolvConf has a pod without the node's /etc: it is logged that changes are not followed.
func TestCopyOfResolvConf(t *testing.T) {
	for _, pod := range []bool{true, false} {
		environ := map[string]string{}
		if pod {
			environ[inPod] = "10.96.0.1"
		}
		n := node(t, environ)
		conf := filepath.Join(t.TempDir(), "Corefile")
		kit.Write(t, conf, ".:53 {\n    forward . "+n.resolvConf+"\n}\n")
		if _, err := n.Source(conf, reader); err != nil {
			t.Fatal(err)
		}
		if warned := len(n.logged) == 1 && strings.Contains(n.logged[0].text, "is a copy from the start of the pod, changes on the node are not followed"); warned != pod {
			t.Errorf("in a pod: %t, messages %v", pod, n.logged)
		}
	}
}

// TestKubeletResolvConf has a kubelet whose --resolv-conf is not /etc/resolv.conf of the node: the servers of its copy
// are not used, and one line at the start names both. Later changes of the node's file do not repeat it.
func TestKubeletResolvConf(t *testing.T) {
	for _, tc := range []struct{ name, node, copied, want string }{
		{"other servers", "nameserver 10.1.0.1\nnameserver 10.1.0.2\n", "nameserver 10.0.0.2\n",
			"servers of the node's /etc/resolv.conf (10.1.0.1 10.1.0.2) are used, not those of the copy that the kubelet made for the pod (10.0.0.2). "},
		{"one server of two", "nameserver 10.1.0.1\nnameserver 10.1.0.2\n", "nameserver 10.1.0.2\n", "(10.1.0.1 10.1.0.2) are used, not those of the copy that the kubelet made for the pod (10.1.0.2). "},
		{"the same in another order", "nameserver 10.1.0.1\nnameserver 10.1.0.2\n", "nameserver 10.1.0.2\nnameserver 10.1.0.1\n", ""},
		{"the kubelet copies three at most", "nameserver 10.1.0.1\nnameserver 10.1.0.2\nnameserver 10.1.0.3\nnameserver 10.1.0.4\n",
			"nameserver 10.1.0.1\nnameserver 10.1.0.2\nnameserver 10.1.0.3\n", ""},
		{"a copy without a usable server", "nameserver 10.1.0.1\n", "nameserver 127.0.0.53\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, map[string]string{inPod: "10.96.0.1"})
			kit.Write(t, n.resolvConf, tc.copied)
			hostFiles(t, n.host, map[string]string{"etc/resolv.conf": tc.node})
			conf := filepath.Join(t.TempDir(), "Corefile")
			kit.Write(t, conf, ".:53 {\n    forward . "+n.resolvConf+"\n}\na.example:53 {\n    forward . "+n.resolvConf+"\n}\n")
			for _, change := range []string{"", "nameserver 10.1.0.9\n"} {
				if change != "" {
					hostFiles(t, n.host, map[string]string{"etc/resolv.conf": change})
				}
				got, err := n.Source(conf, reader)
				if err != nil || !strings.HasPrefix(strings.Join(got.Facts.Forward[2].Servers, " "), "10.1.0.") {
					t.Fatalf("error %v, text\n%s", err, got.Text)
				}
				lines := 0
				for _, r := range n.logged {
					if tc.want != "" && strings.Contains(r.text, tc.want) && strings.Contains(r.text, "remove the mount "+n.host+"/etc ") {
						lines++
					}
				}
				if want := tc.want != "" && change == ""; lines != len(n.logged) || want != (lines == 1) {
					t.Errorf("after the change %q: messages %v, want %q at the start only", change, n.logged, tc.want)
				}
			}
		})
	}
}

// TestSixteenNameservers has more nameservers in the node's file than forward can query: the first are used beside the
// upstreams of the Corefile, and a warning names the file and the number of the others. Too many upstreams in the
// Corefile itself remain an error of forward.
func TestSixteenNameservers(t *testing.T) {
	explicit := func(n int) string { return strings.Repeat(" 192.0.2.1", n) }
	for _, tc := range []struct {
		name, to        string // %s is the file
		upstreams, last int    // of the stanza; the last one of the file
		warning         string
	}{
		{"file", " %s", 15, 15, "has 16 usable nameservers: the last 1 are not used, since the limit of forward is 15 upstreams"},
		{"file and two upstreams", " %s" + explicit(2), 15, 13, "the last 3 are not used"},
		{"no room", explicit(15) + " %s", 15, 0, "the last 16 are not used"},
		{"too many in the Corefile", explicit(16) + " %s", 16, 0, "the last 16 are not used"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := node(t, nil)
			var servers string
			for i := range 16 {
				servers += fmt.Sprintf("nameserver 10.1.0.%d\n", i+1)
			}
			kit.Write(t, n.resolvConf, servers)
			conf := filepath.Join(t.TempDir(), "Corefile")
			kit.Write(t, conf, ".:53 {\n    forward ."+strings.Replace(tc.to, "%s", n.resolvConf, 1)+"\n}\n")
			got, err := n.Source(conf, reader)
			kit.Must(t, err)
			upstreams := got.Facts.Forward[2].Servers
			last := 0
			for _, u := range upstreams {
				if number, ok := strings.CutPrefix(u, "10.1.0."); ok {
					if number != fmt.Sprint(last+1) {
						t.Errorf("upstreams %v: not in the order of the file", upstreams)
					}
					last++
				}
			}
			if len(upstreams) != tc.upstreams || last != tc.last {
				t.Errorf("%d upstreams, %d of them of the file; want %d and %d", len(upstreams), last, tc.upstreams, tc.last)
			}
			if len(n.logged) != 1 || n.logged[0].severity != warning || !strings.Contains(n.logged[0].text, tc.warning) || !strings.HasPrefix(n.logged[0].text, n.resolvConf) {
				t.Errorf("messages %v, want a warning with %q", n.logged, tc.warning)
			}
		})
	}
}
