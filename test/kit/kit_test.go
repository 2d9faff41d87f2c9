package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// failing is a test that notes why it ends.
type failing struct {
	testing.TB
	reason string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) {
	f.reason = fmt.Sprint(args...)
	runtime.Goexit()
}

func (f *failing) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

// reason returns why a function ends its test, "" if it does not.
func reason(t *testing.T, run func(t testing.TB)) string {
	f := &failing{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(f)
	}()
	<-done
	return f.reason
}

// TestMust ends a test by an error only.
func TestMust(t *testing.T) {
	for want, err := range map[string]error{"": nil, "the reason": errors.New("the reason")} {
		if got := reason(t, func(t testing.TB) { Must(t, nil, err) }); got != want {
			t.Errorf("ended with %q, want %q", got, want)
		}
	}
}

// TestWaits has conditions that become true, and ones that do not.
func TestWaits(t *testing.T) {
	looks := 0
	Eventually(t, "the third look", func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("%d looks at a condition that is true at the third", looks)
	}
	never := func(t testing.TB) {
		Succeeds(t, time.Millisecond, "never", func() error { return errors.New("the reason") })
	}
	if got := reason(t, never); !strings.Contains(got, "never") || !strings.Contains(got, "the reason") {
		t.Errorf("a check that never succeeds ended with %q", got)
	}
}

// TestFiles writes a file and reads it.
func TestFiles(t *testing.T) {
	path := File(t, filepath.Join("a", "b"), "text")
	if got := Read(t, path); got != "text" {
		t.Errorf("read %q", got)
	}
}

// TestServe queries a server over UDP and TCP.
func TestServe(t *testing.T) {
	address := Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, m *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeNameError))
	})
	for _, network := range []string{"udp", "tcp"} {
		if reply := Ask(t, network, address, "a.test", dns.TypeA); reply.Rcode != dns.RcodeNameError {
			t.Errorf("%s: %v", network, reply)
		}
	}
}

// TestMessages sends a message and unpacks it.
func TestMessages(t *testing.T) {
	var sent bytes.Buffer
	Send(t, &sent, Pack(t, new(dns.Msg).SetQuestion("a.test.", dns.TypeA)))
	if got := Unpack(t, sent.Bytes()); got.Question[0].Name != "a.test." {
		t.Errorf("%v", got)
	}
}

// TestBackground ends a function.
func TestBackground(t *testing.T) {
	ended := false
	Background(t, func(ctx context.Context) { <-ctx.Done(); ended = true })()
	if !ended {
		t.Error("it does not wait for the end")
	}
}

// TestLogged reads the log of the process.
func TestLogged(t *testing.T) {
	l := Logged(t)
	log.Print("one of two")
	log.Print("two")
	if lines := l.Lines("o", "t"); len(lines) != 2 || l.Count("one") != 1 || !strings.HasSuffix(l.String(), "two\n") {
		t.Errorf("%q", l)
	}
	if l.Reset(); len(l.Lines()) != 0 {
		t.Errorf("%q", l)
	}
}
