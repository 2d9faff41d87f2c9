package test

import (
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/daemon"
)

// TestProbe runs the liveness probe against a server whose upstream does not answer: that is no reason for a restart.
// With a name, the probe queries a record of the server itself.
func TestProbe(t *testing.T) {
	dead, err := net.ListenPacket("udp", "127.0.0.1:0") // receives datagrams, and sends no replies
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := dead.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, program := range []string{"clusterdns", "nodecache"} {
		t.Run(program, func(t *testing.T) {
			path := daemon.Program(t, program)
			records := "template IN A web.example.org {\n answer \"{{ .Name }} 30 IN A 192.0.2.1\"\n }"
			p := daemon.Start(t, path, fmt.Sprintf(".:PORT {\n bind 127.0.0.1\n errors\n cache\n %s\n forward . %s\n}\n", records, dead.LocalAddr()))
			for _, c := range []struct {
				name string
				args []string
				code int
				want string
			}{
				{"any answer", nil, 0, "udp: BADVERS in "},
				{"a name", []string{"-name", "web.example.org"}, 0, "udp: NOERROR in "},
				{"a name that does not exist", []string{"-timeout", "1s", "-name", "www.example.org"}, 1, "probe: udp: "},
			} {
				t.Run(c.name, func(t *testing.T) {
					out, err := exec.Command(path, append([]string{"probe", "-server", p.Addr}, c.args...)...).CombinedOutput()
					code := 0
					if exit, ok := err.(*exec.ExitError); ok {
						code = exit.ExitCode()
					} else if err != nil {
						t.Fatal(err)
					}
					if code != c.code || !strings.Contains(string(out), c.want) {
						t.Errorf("exit code %d, printed %q, want %d and %q", code, out, c.code, c.want)
					}
				})
			}
		})
	}
}
