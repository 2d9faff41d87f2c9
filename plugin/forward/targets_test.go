package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// parsed returns the targets of one stanza.
func parsed(t testing.TB, text string) *targets {
	t.Helper()
	return newTargets(configured(t, text)[0])
}

// watched records the changes that watch reports.
type watched struct {
	mu  sync.Mutex
	all []string
}

func (w *watched) changed(endpoints []endpoint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, addressesOf(endpoints))
}

// next returns the changes since its last call.
func (w *watched) next() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all, w.all = w.all, nil
	return all
}

// follow watches until the end of the test, in a synctest bubble.
func follow(t testing.TB, tg *targets) *watched {
	t.Helper()
	w := new(watched)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); tg.watch(ctx, w.changed) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
	return w
}

// after lets time pass, and compares the changes.
func (w *watched) after(t testing.TB, d time.Duration, want ...string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := w.next(); !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func wantFirst(t testing.TB, tg *targets, want string) {
	t.Helper()
	got, err := tg.first(t.Context())
	kit.Must(t, err)
	if addressesOf(got) != want {
		t.Errorf("first upstreams %s, want %s", addressesOf(got), want)
	}
}

func TestTargets_Fixed(t *testing.T) {
	file := resolvConf(t, "nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver fe80::1%eth0\nnameserver 2001:db8::1%eth0\n")
	for _, c := range []struct{ to, want string }{
		{"192.0.2.1 192.0.2.1:53 dns://192.0.2.1", "192.0.2.1:53"},
		{"192.0.2.2 192.0.2.1 192.0.2.2", "192.0.2.2:53, 192.0.2.1:53"},
		{"192.0.2.1%a 192.0.2.1%b", "192.0.2.1:53"},
		{"192.0.2.1 tls://192.0.2.1 quic://192.0.2.1 https://192.0.2.1", "192.0.2.1:53, 192.0.2.1:853, 192.0.2.1:853, 192.0.2.1:443"},
		{"tls://192.0.2.1%a tls://192.0.2.1%A tls://192.0.2.1%b tls://192.0.2.1", "192.0.2.1:853, 192.0.2.1:853, 192.0.2.1:853"},
		{"2001:db8::1 [2001:DB8:0:0::1]:53", "[2001:db8::1]:53"},
		{"192.0.2.2 " + file, "192.0.2.2:53, 192.0.2.1:53, [fe80::1%eth0]:53, [2001:db8::1]:53"},
		{"tls://" + file, "192.0.2.1:853, 192.0.2.2:853, [fe80::1%eth0]:853, [2001:db8::1]:853"},
	} {
		t.Run(c.to, func(t *testing.T) { wantFirst(t, parsed(t, "forward . "+c.to), c.want) })
	}
}

// TestTargets_Nothing: watching fixed addresses ends at once.
func TestTargets_Nothing(t *testing.T) {
	tg := parsed(t, "forward . 192.0.2.1")
	wantFirst(t, tg, "192.0.2.1:53")
	tg.watch(t.Context(), func([]endpoint) { t.Error("a change") })
}

func TestTargets_TooMany(t *testing.T) {
	text := ""
	for i := range 20 {
		text += fmt.Sprintf("nameserver 192.0.2.%d\n", i+1)
	}
	got, err := parsed(t, "forward . 192.0.2.3 "+resolvConf(t, text)).first(t.Context())
	if err != nil || len(got) != 15 || got[0].address != "192.0.2.3:53" || got[14].address != "192.0.2.15:53" {
		t.Errorf("upstreams %s, %v", addressesOf(got), err)
	}
}

// TestTargets_FileChanges: changes of a file of any kind change the upstreams.
func TestTargets_FileChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := resolvConf(t, "nameserver 192.0.2.1\n")
		write := func(name, text string) {
			t.Helper()
			kit.Write(t, name, text)
		}
		tg := parsed(t, "forward . "+path+" 192.0.2.9")
		wantFirst(t, tg, "192.0.2.1:53, 192.0.2.9:53")
		w := follow(t, tg)
		w.after(t, time.Minute)

		write(path, "nameserver 192.0.2.2\nnameserver 192.0.2.3\n") // in place
		w.after(t, 6*time.Second, "192.0.2.2:53, 192.0.2.3:53, 192.0.2.9:53")

		write(path+".new", "nameserver 192.0.2.4\n") // replaces the file
		kit.Must(t, os.Rename(path+".new", path))
		w.after(t, 6*time.Second, "192.0.2.4:53, 192.0.2.9:53")

		for _, broken := range []string{"", "# nothing\n", "nameserver dns.example\n"} {
			write(path, broken)
			w.after(t, time.Minute)
		}
		kit.Must(t, os.Remove(path))
		w.after(t, time.Minute)
		kit.Must(t, os.Mkdir(path, 0o700))
		w.after(t, time.Minute)
		kit.Must(t, os.Remove(path))
		write(path, "nameserver 192.0.2.4\n") // as before
		w.after(t, time.Minute)
		write(path, "nameserver 192.0.2.9\n") // a duplicate
		w.after(t, time.Minute, "192.0.2.9:53")
	})
}

// TestTargets_LinkChanges: a file behind symbolic links, as in a mounted ConfigMap.
func TestTargets_LinkChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for version, server := range map[string]string{"v1": "192.0.2.1", "v2": "192.0.2.2"} {
			kit.Must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
			kit.Write(t, filepath.Join(dir, version, "resolv.conf"), "nameserver "+server+"\n")
		}
		link := func(to, name string) {
			t.Helper()
			kit.Must(t, os.Symlink(to, filepath.Join(dir, "new")))
			kit.Must(t, os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, name)))
		}
		link("v1", "..data")
		link("..data/resolv.conf", "resolv.conf")
		tg := parsed(t, "forward . "+filepath.Join(dir, "resolv.conf"))
		wantFirst(t, tg, "192.0.2.1:53")
		w := follow(t, tg)
		w.after(t, 6*time.Second)
		link("v2", "..data")
		w.after(t, 6*time.Second, "192.0.2.2:53")
		link("nowhere", "..data")
		w.after(t, time.Minute)
		link("v1", "..data")
		w.after(t, 6*time.Second, "192.0.2.1:53")
	})
}

// TestTargets_HalfWritten: short-lived contents of a file are ignored.
func TestTargets_HalfWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := resolvConf(t, "nameserver 192.0.2.1\n")
		tg := parsed(t, "forward . "+path)
		wantFirst(t, tg, "192.0.2.1:53")
		w := follow(t, tg)
		kit.Write(t, path, "nameserver 192.0.2.1")
		w.after(t, time.Second)
		kit.Write(t, path, "nameserver 192.0.2.12\nnameserver 192.0.")
		w.after(t, 4*time.Second+100*time.Millisecond) // the file has been read once
		kit.Write(t, path, "nameserver 192.0.2.12\nnameserver 192.0.2.13\n")
		w.after(t, time.Second, "192.0.2.12:53, 192.0.2.13:53")
	})
}

// TestTargets_EmptyAtFirst: a file without servers is no error if the stanza has other upstreams. Later servers are used.
func TestTargets_EmptyAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := resolvConf(t, "")
		tg := parsed(t, "forward . "+path+" 192.0.2.9")
		wantFirst(t, tg, "192.0.2.9:53")
		w := follow(t, tg)
		kit.Write(t, path, "nameserver 192.0.2.1\n")
		w.after(t, 6*time.Second, "192.0.2.1:53, 192.0.2.9:53")
	})
}

// hosts answers lookups in a test.
type hosts struct {
	mu      sync.Mutex
	answers map[string]addresses
	errs    map[string]error
	lookups []time.Time
}

var errTemporary = errors.New("SERVFAIL")

// set sets the addresses of a name, or its error.
func (h *hosts) set(name string, err error, list ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var a addresses
	for _, text := range list {
		a.found = append(a.found, netip.MustParseAddr(text))
	}
	if h.answers == nil {
		h.answers, h.errs = map[string]addresses{}, map[string]error{}
	}
	h.answers[name], h.errs[name] = a, err
}

func (h *hosts) lookup(_ context.Context, name string) (addresses, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookups = append(h.lookups, time.Now())
	a, ok := h.answers[name]
	if !ok {
		return a, errNoHost
	}
	return a, h.errs[name]
}

func TestTargets_HostChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hosts)
		h.set("a.example.", nil, "192.0.2.1", "192.0.2.2", "2001:db8::1")
		tg := parsed(t, "forward . a.example:5353 192.0.2.9")
		tg.lookup = h.lookup
		wantFirst(t, tg, "192.0.2.1:5353, 192.0.2.2:5353, [2001:db8::1]:5353, 192.0.2.9:53")
		w := follow(t, tg)
		h.set("a.example.", nil, "2001:db8::1", "192.0.2.2", "192.0.2.1") // in another order
		w.after(t, 2*time.Minute)
		h.set("a.example.", nil, "192.0.2.3", "192.0.2.2")
		w.after(t, 34*time.Second, "192.0.2.2:5353, 192.0.2.3:5353, 192.0.2.9:53")
		for _, err := range []error{errTemporary, errNoHost} {
			h.set("a.example.", err)
			w.after(t, 2*time.Minute)
		}
		h.set("a.example.", nil, "192.0.2.4")
		w.after(t, 34*time.Second, "192.0.2.4:5353, 192.0.2.9:53")
	})
}

// TestTargets_Interval: lookups are a little more than 30 s apart.
func TestTargets_Interval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hosts)
		h.set("a.example.", nil, "192.0.2.1")
		tg := parsed(t, "forward . a.example")
		tg.lookup = h.lookup
		wantFirst(t, tg, "192.0.2.1:53")
		follow(t, tg).after(t, 20*time.Minute)
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.lookups) < 36 || len(h.lookups) > 41 {
			t.Errorf("%d lookups in 20 minutes", len(h.lookups))
		}
		different := map[time.Duration]bool{}
		for i, at := range h.lookups[1:] {
			apart := at.Sub(h.lookups[i])
			different[apart] = true
			if apart < 30*time.Second || apart > 33*time.Second {
				t.Errorf("lookup %d is %s after the previous one, want 30-33s", i+1, apart)
			}
		}
		if len(different) < 5 {
			t.Errorf("intervals of lookups: %v, want at least 5 different ones", different)
		}
	})
}

// TestTargets_HostLater: a lookup that fails at start is repeated with growing pauses. The other upstreams are used.
func TestTargets_HostLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hosts)
		h.set("a.example.", errTemporary)
		tg := parsed(t, "forward . a.example 192.0.2.9")
		tg.lookup = h.lookup
		wantFirst(t, tg, "192.0.2.9:53")
		begin := time.Now()
		w := follow(t, tg)
		w.after(t, 121*time.Second)
		h.mu.Lock()
		var times []time.Duration
		for _, at := range h.lookups {
			times = append(times, at.Sub(begin))
		}
		h.mu.Unlock()
		s := time.Second
		if want := []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 31 * s, 61 * s, 91 * s, 121 * s}; !slices.Equal(times, want) {
			t.Errorf("lookups at %v, want %v", times, want)
		}
		h.set("a.example.", errNoHost) // is no error after the start
		w.after(t, time.Minute)
		h.set("a.example.", nil, "192.0.2.1")
		w.after(t, 30*time.Second, "192.0.2.1:53, 192.0.2.9:53")
	})
}

// TestTargets_NoneAtFirst: a stanza may start without upstreams.
func TestTargets_NoneAtFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hosts)
		h.set("a.example.", errTemporary)
		tg := parsed(t, "forward . a.example")
		tg.lookup = h.lookup
		wantFirst(t, tg, "")
		w := follow(t, tg)
		h.set("a.example.", nil, "192.0.2.1")
		w.after(t, time.Second, "192.0.2.1:53")
	})
}

func TestTargets_NoSuchHost(t *testing.T) {
	h := new(hosts)
	h.set("a.example.", nil, "192.0.2.1")
	tg := parsed(t, "\n\nforward . a.example 192.0.2.9 b.example")
	tg.lookup = h.lookup
	_, err := tg.first(t.Context())
	const want = `Testfile:3 - Error during parsing: forward: "b.example" is neither a file nor a host: no address found`
	if err == nil || err.Error() != want {
		t.Errorf("error\n got %v\nwant %s", err, want)
	}
}

// TestTargets_FirstIsBounded: the start waits at most five seconds for all hosts.
func TestTargets_FirstIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tg := parsed(t, "forward . a.example b.example c.example 192.0.2.9")
		tg.lookup = func(ctx context.Context, _ string) (addresses, error) {
			<-ctx.Done()
			return addresses{}, ctx.Err()
		}
		begin := time.Now()
		wantFirst(t, tg, "192.0.2.9:53")
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("first took %s, want 5s", took)
		}
	})
}

// TestTargets_Stop: a lookup in progress does not delay the end.
func TestTargets_Stop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hosts)
		h.set("a.example.", nil, "192.0.2.1")
		tg := parsed(t, "forward . a.example "+resolvConf(t, "nameserver 192.0.2.2\n"))
		tg.lookup = h.lookup
		wantFirst(t, tg, "192.0.2.1:53, 192.0.2.2:53")
		tg.lookup = func(ctx context.Context, _ string) (addresses, error) {
			<-ctx.Done()
			return addresses{}, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); tg.watch(ctx, func([]endpoint) { t.Error("a change") }) }()
		time.Sleep(time.Minute)
		begin := time.Now()
		cancel()
		<-ended
		if took := time.Since(begin); took != 0 {
			t.Errorf("watch took %s to end", took)
		}
	})
}

// logged returns the log of a function.
func logged(t *testing.T, do func()) string {
	t.Helper()
	text := kit.Logged(t)
	do()
	return text.String()
}

// TestTargets_LoggedOnce: a failure and its end are each logged once.
func TestTargets_LoggedOnce(t *testing.T) {
	s := &source{target: target{text: "a.example"}, endpoints: []endpoint{plain("192.0.2.1:53")}}
	text := logged(t, func() {
		s.recovered()
		s.failed(errTemporary)
		s.failed(errNoHost)
		s.recovered()
		s.recovered()
	})
	if strings.Count(text, "\n") != 2 || !strings.Contains(text, "upstreams of a.example not found: SERVFAIL; still used are 192.0.2.1:53\n") ||
		!strings.Contains(text, "upstreams of a.example found again\n") {
		t.Errorf("logged:\n%s", text)
	}
}

func TestAddresses_After(t *testing.T) {
	list := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	for _, c := range []struct {
		name                string
		before, found, want []netip.Addr
		unknown             [2]bool
	}{
		{"first", nil, list("192.0.2.1", "::1"), list("192.0.2.1", "::1"), [2]bool{}},
		{"the order remains", list("192.0.2.1", "192.0.2.2"), list("192.0.2.2", "192.0.2.1"), list("192.0.2.1", "192.0.2.2"), [2]bool{}},
		{"one is removed, one added", list("192.0.2.1", "192.0.2.2"), list("192.0.2.3", "192.0.2.2"), list("192.0.2.2", "192.0.2.3"), [2]bool{}},
		{"a family without addresses", list("192.0.2.1", "::1"), list("192.0.2.1"), list("192.0.2.1"), [2]bool{}},
		{"IPv6 is not known", list("192.0.2.1", "::1"), list("192.0.2.2"), list("::1", "192.0.2.2"), [2]bool{false, true}},
		{"IPv4 is not known", list("192.0.2.1", "::1"), list("::2"), list("192.0.2.1", "::2"), [2]bool{true, false}},
		{"twice", nil, list("192.0.2.1", "192.0.2.1"), list("192.0.2.1"), [2]bool{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := (addresses{found: c.found, unknown: c.unknown}).after(c.before); !slices.Equal(got, c.want) {
				t.Errorf("addresses %v, want %v", got, c.want)
			}
		})
	}
}
