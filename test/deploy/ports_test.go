package deploy

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
)

// TestPortsInUse starts the programs while another process has one of their ports.
func TestPortsInUse(t *testing.T) {
	for _, tc := range []struct {
		name, corefile string // HELD is the address of the other process
		want           string // in the output
		ends           bool
	}{
		{"DNS", ".:HELDPORT {\n    bind 127.0.0.1\n    whoami\n}\n", "address already in use", true},
		{"health", ".:PORT {\n    bind 127.0.0.1\n    whoami\n    health HELD\n}\n", "HELD: bind: address already in use", true},
		{"ready", ".:PORT {\n    bind 127.0.0.1\n    whoami\n    ready HELD\n}\n", "", false},
		{"prometheus", ".:PORT {\n    bind 127.0.0.1\n    whoami\n    prometheus HELD\n}\n", "Failed to start metrics handler: listen tcp HELD", false},
	} {
		for _, name := range []string{"clusterdns", "nodecache"} {
			t.Run(tc.name+" of "+name, func(t *testing.T) {
				holder, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = holder.Close() })
				_, port, err := net.SplitHostPort(holder.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				at := strings.NewReplacer("HELDPORT", port, "HELD", holder.Addr().String())
				p := daemon.Launch(t, daemon.Program(t, name), at.Replace(tc.corefile))
				if tc.ends {
					if code, err := p.Wait(deadline); err != nil || code != 1 {
						t.Errorf("exit code %d, %v", code, err)
					}
				} else {
					await(t, "an answer", func() error {
						_, err := answer(p.Addr, "www.example.com A")
						return err
					})
				}
				await(t, "the output", func() error {
					if want := at.Replace(tc.want); !strings.Contains(p.Output(), want) {
						return fmt.Errorf("%q, want %q", p.Output(), want)
					}
					return nil
				})
			})
		}
	}
}
