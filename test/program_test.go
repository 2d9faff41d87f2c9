package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/daemon"
)

// run runs a program to its end and returns its exit code and its output.
func run(t *testing.T, stdin, program string, args ...string) (code int, output string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")} // not in a cluster
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestPrograms runs the programs with invalid flags and configurations, to their end.
func TestPrograms(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	kit.Must(t, os.WriteFile(empty, []byte("\n"), 0o600))
	for _, program := range []string{"clusterdns", "nodecache"} {
		path := daemon.Program(t, program)
		for _, tc := range []struct {
			name  string
			args  []string
			stdin string
			code  int
			want  string // in the output
		}{
			{"version", []string{"-version"}, "", 0, program + "-"},
			{"version of CoreDNS", []string{"-version"}, "", 0, "CoreDNS-1.15.0"},
			{"plugins", []string{"-plugins"}, "", 0, "errors\n"},
			{"last plugins", []string{"-plugins"}, "", 0, map[string]string{"clusterdns": "sign\nview\n", "nodecache": "forward\nwhoami\n"}[program]},
			{"help", []string{"-help"}, "", 0, "-dns.port"},
			{"unknown flag", []string{"-nope"}, "", 2, "flag provided but not defined: -nope"},
			{"argument", []string{"Corefile"}, "", 2, `unexpected argument "Corefile": options begin with a dash`},
			{"value of a switch", []string{"-quiet", "false"}, "", 2, `unexpected argument "false": write -quiet=false`},
			{"port", []string{"-dns.port", "0"}, "", 2, `flag -dns.port: "0" is not a port`},
			{"no Corefile", nil, "", 1, "no configuration: open Corefile: no such file or directory; name a Corefile with -conf"},
			{"missing Corefile", []string{"-conf", "/none"}, "", 1, "no configuration: open /none: no such file"},
			{"empty Corefile", []string{"-conf", empty}, "", 1, empty + " is empty"},
			{"log format", []string{"-conf", "stdin", "-log-format", "xml"}, "", 2, "flag -log-format: want text or json"},
			{"directive of another program", []string{"-conf", "stdin"}, ".:0 {\n    nonsense\n}\n", 1, "stdin:2 - Error during parsing: Unknown directive 'nonsense'"},
			{"option", []string{"-conf", "stdin"}, ".:0 {\n    cache {\n        nonsense\n    }\n}\n", 1, "plugin/cache: stdin:3"},
		} {
			t.Run(program+"/"+tc.name, func(t *testing.T) {
				code, output := run(t, tc.stdin, path, tc.args...)
				if code != tc.code || !strings.Contains(output, tc.want) {
					t.Errorf("exit code %d and %q, want %d and %q", code, output, tc.code, tc.want)
				}
				if tc.code > 0 && strings.Count(output, "\n") != 1 {
					t.Errorf("%q is not one line", output)
				}
			})
		}
	}
}

// TestDirectivesOfNodeLocalDNS checks that nodecache has the directives of node-local-dns.
func TestDirectivesOfNodeLocalDNS(t *testing.T) {
	_, output := run(t, "", daemon.Program(t, "nodecache"), "-plugins")
	for _, name := range []string{
		"timeouts", "reload", "bufsize", "bind", "debug", "trace", "health", "pprof", "prometheus", "errors", "log", "dns64",
		"loadbalance", "cache", "rewrite", "template", "hosts", "loop", "forward", "whoami",
	} {
		if !strings.Contains("\n"+output, "\n"+name+"\n") {
			t.Errorf("no directive %s", name)
		}
	}
}

// TestNodecache starts nodecache with the server blocks of node-local-dns's Corefile, without the settings of the node.
func TestNodecache(t *testing.T) {
	daemon.Start(t, daemon.Program(t, "nodecache"), `cluster.local:PORT {
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    bind 127.0.0.1
    forward . 127.0.0.1:1 {
        force_tcp
    }
}
.:PORT {
    errors
    cache 30
    reload
    bind 127.0.0.1
    forward . 127.0.0.1:1
}
`)
}
