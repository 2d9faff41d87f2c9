package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestCustomFiles changes the files that the deployed Corefiles import while the programs run: no file, files, a changed
// file, an invalid one, and no file again.
func TestCustomFiles(t *testing.T) {
	const inside, outside = "192.0.2.90", "192.0.2.80"
	for _, name := range []string{"clusterdns", "nodecache"} {
		t.Run(name, func(t *testing.T) {
			file := map[string]string{"clusterdns": "clusterdns/Corefile", "nodecache": "nodecache/Corefile.base"}[name]
			text, err := os.ReadFile(filepath.Join(deployed, file))
			kit.Must(t, err)
			corefile := strings.NewReplacer(
				"__PILLAR__CLUSTER__DNS__", upstream(t, "10.96.12.34"), "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
				"    bind __PILLAR__LOCAL__DNS__\n", "", "__PILLAR__LOCAL__DNS__:", ":", "    reload\n", "    reload 2s 1s\n",
			).Replace(string(text))
			p := daemon.Start(t, daemon.Program(t, name), onLoopback(t, corefile, cluster(t).URL(), upstream(t, outside)))
			awaitAnswer(t, p.Addr, "www.corp.example.com A", "A "+outside)
			custom := filepath.Join(filepath.Dir(p.Corefile), "custom")
			kit.Must(t, os.Mkdir(custom, 0o700))
			write := func(name, text string) {
				t.Helper()
				kit.Write(t, filepath.Join(custom, name), text)
			}
			// reloaded waits until the reload has ended: a change before that is not noticed by clusterdns, nor by CoreDNS.
			reloads := 0
			reloaded := func() {
				t.Helper()
				reloads++
				kit.Succeeds(t, deadline, "the end of the reload", func() error {
					if n := strings.Count(p.Output(), "Reloading complete"); n < reloads {
						return fmt.Errorf("%d reloads, want %d", n, reloads)
					}
					return nil
				})
			}
			server := fmt.Sprintf("corp.example.com:%d {\n    bind 127.0.0.1\n    forward . %s\n}\n", p.Port, upstream(t, inside))
			write("a.server", server)
			awaitAnswer(t, p.Addr, "www.corp.example.com A", "A "+inside)
			reloaded()
			write("a.override", "hosts {\n    192.0.2.10 registry.example.com\n    fallthrough\n}\n")
			awaitAnswer(t, p.Addr, "registry.example.com A", "A 192.0.2.10")
			reloaded()
			write("a.override", "hosts {\n    192.0.2.11 registry.example.com\n    fallthrough\n}\n")
			awaitAnswer(t, p.Addr, "registry.example.com A", "A 192.0.2.11")
			reloaded()
			write("b.override", "nonsense\n")
			kit.Succeeds(t, deadline, "the invalid file is refused", func() error {
				if !strings.Contains(p.Output(), "nonsense") {
					return fmt.Errorf("log %s", p.Output())
				}
				return nil
			})
			awaitAnswer(t, p.Addr, "registry.example.com A", "A 192.0.2.11")
			if err := os.Rename(custom, custom+"-removed"); err != nil { // all at once, as the kubelet does
				t.Fatal(err)
			}
			awaitAnswer(t, p.Addr, "registry.example.com A", "A "+outside)
			awaitAnswer(t, p.Addr, "www.corp.example.com A", "A "+outside)
			awaitAnswer(t, p.Addr, service.name, service.want)
			if n := strings.Count(p.Output(), "No files matching import glob pattern: custom/*.server"); n != 1 {
				t.Errorf("a pattern without files is logged %d times", n)
			}
		})
	}
}
