package test

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestDuplicateServerBlock starts both programs with two server blocks for one zone: one line names the lines of both.
func TestDuplicateServerBlock(t *testing.T) {
	const second = "\n.:5399 {\n    errors\n}\n"
	imported := kit.File(t, "imported", "# comment\n.:5399 {\n    errors\n}\n")
	directives := kit.File(t, "directives", "errors\n")
	paths := map[string]string{"clusterdns": daemon.Program(t, "clusterdns"), "nodecache": daemon.Program(t, "nodecache")}
	for program, path := range paths {
		for _, tc := range []struct{ name, corefile, want string }{
			{"two blocks", ".:5399 {\n    errors\n}\n" + second, "FILE:5 - cannot serve dns://.:5399 - it is already defined at FILE:1: leave out one of them"},
			{"without directives", ".:5399 {\n}\n" + second, "FILE:4 - cannot serve dns://.:5399 - it is already defined at FILE:1: "},
			{"behind others and a snippet", "(s) {\n    errors\n}\na.example:5399 {\n}\nb.example:5399, .:5399,\nc.example:5399 {\n    import s\n}\n" + second, "FILE:11 - cannot serve dns://.:5399 - it is already defined at FILE:6: "},
			{"other words for one zone", "dns://A.Example:5399 {\n    errors\n}\na.example.:5399 {\n}\n", "FILE:4 - cannot serve dns://a.example.:5399 - it is already defined at FILE:1: "},
			{"bound to one address", ".:5399 {\n    bind ::1\n}\n.:5399 {\n    bind 127.0.0.1\n}\n.:5399 {\n    bind 127.0.0.1\n}\n", "FILE:7 - cannot serve dns://.:5399 on 127.0.0.1 - it is already defined at FILE:4: "},
			{"with bind and without", ".:5399 {\n    bind 127.0.0.1\n}\n" + second, "FILE:5 - cannot serve dns://.:5399 - zone overlap listener capacity with dns://.:5399 on 127.0.0.1 at FILE:1: "},
			{"one block", ".:5399 .:5399 {\n    errors\n}\n", "FILE:1 - cannot serve dns://.:5399 - it is already defined in the same server block"},
			{"imported block", "import " + imported + "\n" + second, "FILE:3 - cannot serve dns://.:5399 - it is already defined at " + imported + ":3: "},
			{"block with imported directives", ".:5399 {\n    import " + directives + "\n}\n" + second, "FILE:5 - cannot serve dns://.:5399 - it is already defined at FILE:1: "},
			{"key of the environment", "{$ZONE}.:5399 {\n}\n" + second, "FILE:4 - cannot serve dns://.:5399 - it is already defined at FILE:1: "},
		} {
			t.Run(program+"/"+tc.name, func(t *testing.T) {
				file := kit.File(t, "Corefile", tc.corefile)
				code, output := run(t, "", path, "-conf", file)
				if want := strings.ReplaceAll(tc.want, "FILE", file); code != 1 || !strings.Contains(output, want) || strings.Count(output, "\n") != 1 {
					t.Errorf("exit code %d and %q, want 1 and one line with %q", code, output, want)
				}
			})
		}
	}
	t.Run("rendered", func(t *testing.T) {
		resolvConf := kit.File(t, "resolv.conf", "nameserver 10.99.0.1\n")
		base := kit.File(t, "base", "a.example:5399 {\n    forward . "+resolvConf+"\n}\n.:5399 {\n}\n"+second) // forward has more tokens then
		code, output := run(t, "", paths["nodecache"], "-basecorefile", base, "-conf", filepath.Join(t.TempDir(), "Corefile"))
		if want := fmt.Sprintf("%s:7 - cannot serve dns://.:5399 - it is already defined at %s:4: ", base, base); code != 1 || !strings.Contains(output, want) {
			t.Errorf("exit code %d and %q, want 1 and %q", code, output, want)
		}
	})
}

// TestUnknownDirective starts both programs with directives that they do not have: one line names the program that has
// it and the remedy, or the directive that was meant.
func TestUnknownDirective(t *testing.T) {
	paths := map[string]string{"clusterdns": daemon.Program(t, "clusterdns"), "nodecache": daemon.Program(t, "nodecache")}
	for _, tc := range []struct{ program, directive, want string }{
		{"nodecache", "acl", ", which CoreDNS has and nodecache does not: remove it, or keep CoreDNS where it is needed; "},
		{"clusterdns", "geoip", ", which CoreDNS has and clusterdns does not: remove it, or keep CoreDNS where it is needed; clusterdns -plugins lists the directives; a program with other plugins: https://github.com/nearside-dns/nearside/blob/main/docs/bundle.md"},
		{"clusterdns", "etcd", ", which CoreDNS has and clusterdns does not: "},
		{"clusterdns", "k8s_crd", "; clusterdns -plugins lists the directives; a program with other plugins: https://"},
		{"clusterdns", "kubernetess", `: did you mean "kubernetes"?`},
		{"nodecache", "forwrad", `: did you mean "forward"?`},
		{"nodecache", "nonsense", "; nodecache -plugins lists the directives"},
	} {
		t.Run(tc.program+"/"+tc.directive, func(t *testing.T) {
			code, output := run(t, ".:5399 {\n    errors\n    "+tc.directive+"\n}\n", paths[tc.program], "-conf", "stdin")
			if want := fmt.Sprintf("stdin:3 - Error during parsing: Unknown directive '%s'%s", tc.directive, tc.want); code != 1 || !strings.Contains(output, want) || strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d and %q, want 1 and one line with %q", code, output, want)
			}
		})
	}
}

// TestDuplicateServerBlockReloaded adds a second server block for a zone while the programs run.
func TestDuplicateServerBlockReloaded(t *testing.T) {
	for _, program := range []string{"clusterdns", "nodecache"} {
		p := daemon.Start(t, daemon.Program(t, program), ".:PORT {\n    bind 127.0.0.1\n}\n")
		p.Configure(t, ".:PORT {\n    bind 127.0.0.1\n}\n\n.:PORT {\n    bind 127.0.0.1\n}\n")
		p.Signal(t, syscall.SIGUSR1)
		want := fmt.Sprintf("%s:5 - cannot serve dns://.:%d on 127.0.0.1 - it is already defined at %s:1: ", p.Corefile, p.Port, p.Corefile)
		kit.Eventually(t, "the lines of both", func() bool { return lines(p, want) > 0 })
	}
}
