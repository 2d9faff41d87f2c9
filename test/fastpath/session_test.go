//go:build linux

package fastpath

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// The bytes of sessions, as the README of package dso specifies them.
const (
	opcodeDSO     = 6
	tlvRetryDelay = 2
	tlvHeartbeat  = 0xF8A1
	tlvInvalidate = 0xF8A2
	optionHandles = 65315
)

// sessionRequest is a DSO request for notifications: its ID is 1, and the only TLV has type F8A0 and version 1.
var sessionRequest = []byte{0, 1, opcodeDSO << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF8, 0xA0, 0, 1, 1}

// session is the connection of a client with a session.
type session struct{ stream }

// openSession opens a connection and a session.
func openSession(t *testing.T, s *server) session {
	t.Helper()
	c := session{connect(t, s, "", "127.0.0.1")}
	c.write(t, sessionRequest)
	if b := c.read(t); !isDSO(b) || b[2]&0x80 == 0 || b[3]&0xF != dns.RcodeSuccess {
		t.Fatalf("response % x", b)
	}
	return c
}

func (c session) write(t *testing.T, message []byte) {
	t.Helper()
	if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)); err != nil {
		t.Fatal(err)
	}
}

// read returns the next message that is no heartbeat.
func (c session) read(t *testing.T) []byte {
	t.Helper()
	for {
		length := make([]byte, 2)
		if _, err := io.ReadFull(c, length); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, binary.BigEndian.Uint16(length))
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
		if kind, _ := primaryOf(b); kind != tlvHeartbeat {
			return b
		}
	}
}

func isDSO(b []byte) bool { return b[2]>>3&0xF == opcodeDSO }

// primaryOf returns the type and the data of the first TLV of a DSO message, 0 for another message.
func primaryOf(b []byte) (kind int, data []byte) {
	if !isDSO(b) || len(b) < 16 {
		return 0, nil
	}
	return int(binary.BigEndian.Uint16(b[12:])), b[16:][:binary.BigEndian.Uint16(b[14:])]
}

// handlesIn returns the handles in the data of an invalidation or of an option.
func handlesIn(data []byte) (handles []uint64) {
	for ; len(data) >= 8; data = data[8:] {
		handles = append(handles, binary.BigEndian.Uint64(data))
	}
	return handles
}

// ask sends a query that requests notification, and returns the answer as text and its handles. Invalidations before it are
// ignored.
func (c session) ask(t *testing.T, name string, qtype uint16) (text string, handles []uint64) {
	t.Helper()
	q := newQuery(name, qtype).SetEdns0(1232, false)
	q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: optionHandles}}
	c.write(t, pack(t, q))
	b := c.read(t)
	for isDSO(b) {
		b = c.read(t)
	}
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(b))
	for _, o := range m.IsEdns0().Option {
		if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == optionHandles {
			handles = handlesIn(local.Data)
		}
	}
	return brief(t, b), handles
}

// awaitInvalidation waits until one of some handles, or all, is invalidated.
func (c session) awaitInvalidation(t *testing.T, handles []uint64) {
	t.Helper()
	for {
		kind, data := primaryOf(c.read(t))
		if kind != tlvInvalidate {
			t.Fatalf("TLV %x, want an invalidation", kind)
		}
		ended := handlesIn(data)
		if len(ended) == 0 || slices.ContainsFunc(handles, func(h uint64) bool { return slices.Contains(ended, h) }) {
			return
		}
	}
}

// TestSessions changes manifests: the first answers and the stored ones have handles, which are invalidated when the answer
// changes. A reload revokes all answers, one without option coherent ends the session, and the end of the process too.
func TestSessions(t *testing.T) {
	for name, more := range map[string]string{"by generation": "", "with cache": "cache 3600"} {
		t.Run(name, func(t *testing.T) {
			folder := newCluster(t)
			plain := strings.ReplaceAll(clusterBlock(folder, more), "FASTPATH", "")
			coherent := strings.Replace(plain, "zonal\n", "zonal\n        coherent\n", 1)
			s := start(t, "clusterdns", coherent)
			c := openSession(t, s)
			const moving, growing = "moving.shop.svc.cluster.local.", "growing.shop.svc.cluster.local."
			for _, step := range []struct {
				what, file, text, name string
				qtype                  uint16
				before, after          string
			}{
				{"a Service comes", "moving.yaml", clusterIP("moving", "10.96.200.1"), moving, dns.TypeA, "NXDOMAIN", "NOERROR 10.96.200.1"},
				{"its address changes", "moving.yaml", clusterIP("moving", "10.96.200.2"), moving, dns.TypeA, "NOERROR 10.96.200.1", "NOERROR 10.96.200.2"},
				{"it gets another family", "moving.yaml", dualStack, moving, dns.TypeAAAA, "NOERROR", "NOERROR fd00:96::200:2"},
				{"it goes", "moving.yaml", "", moving, dns.TypeA, "NOERROR 10.96.200.2", "NXDOMAIN"},
				{"its reverse name comes", "moving.yaml", dualStack, "2.200.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN", "NOERROR " + moving},
				{"a headless Service comes", "growing.yaml", headlessAt("growing", "10.245.9.1"), growing, dns.TypeA, "NXDOMAIN", "NOERROR 10.245.9.1"},
				{"an endpoint comes", "growing.yaml", headlessAt("growing", "10.245.9.1", "10.245.9.2"), growing, dns.TypeA, "NOERROR 10.245.9.1", "NOERROR 10.245.9.1, 10.245.9.2"},
				{"an alias comes", "alias.yaml", external("alias", "one.example.org"), "alias.shop.svc.cluster.local.", dns.TypeCNAME, "NXDOMAIN", "NOERROR one.example.org."},
				{"a pod comes", "pod.yaml", pod, "10-244-77-7.shop.pod.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR 10.244.77.7"},
				{"a namespace comes", "namespace.yaml", elsewhere, "newcomers.svc.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR"},
			} {
				var handles []uint64
				for range 3 { // the first answer, and stored ones
					var text string
					if text, handles = c.ask(t, step.name, step.qtype); text != step.before || len(handles) == 0 {
						t.Fatalf("%s: before that, %q with handles %v, want %q with some", step.what, text, handles, step.before)
					}
				}
				if step.text == "" {
					kit.Must(t, os.Remove(filepath.Join(folder, step.file)))
				} else {
					manifest(t, folder, step.file, step.text)
				}
				text := ""
				for range 5 { // several Generations may advance one after the other
					c.awaitInvalidation(t, handles)
					if text, handles = c.ask(t, step.name, step.qtype); text == step.after {
						break
					}
				}
				if text != step.after || len(handles) == 0 {
					t.Errorf("%s: %q with handles %v after an invalidation, want %q with some", step.what, text, handles, step.after)
				}
			}
			s.reload(t, coherent+"# reloaded\n")
			c.awaitInvalidation(t, nil)
			if text, handles := c.ask(t, growing, dns.TypeA); text != "NOERROR 10.245.9.1, 10.245.9.2" || len(handles) == 0 {
				t.Errorf("after a reload, %q with handles %v", text, handles)
			}
			last := openSession(t, s)
			s.reload(t, plain)
			c.awaitEnd(t)
			last.awaitEnd(t)
			other := connect(t, s, "", "127.0.0.1")
			session{other}.write(t, sessionRequest)
			if b := (session{other}).read(t); b[3]&0xF != dns.RcodeNotImplemented {
				t.Errorf("response % x without sessions, want NOTIMP", b)
			}
			s.reload(t, coherent)
			stopped := openSession(t, s)
			s.Signal(t, syscall.SIGTERM)
			stopped.awaitEnd(t)
		})
	}
}

// awaitEnd waits until the server ends the session with a retry delay.
func (c session) awaitEnd(t *testing.T) {
	t.Helper()
	for {
		switch kind, _ := primaryOf(c.read(t)); kind {
		case tlvRetryDelay:
			return
		case 0:
			t.Fatal("no DSO message, want a retry delay")
		}
	}
}
