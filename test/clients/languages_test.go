//go:build linux

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// python is Debian's Python, whose modules are Debian's packages.
const python = "/usr/bin/python3"

// dnspython is a file of dnspython.
const dnspython = "/usr/lib/python3/dist-packages/dns/message.py"

var onlyAddresses = []string{"ADDRESSES"}

// languages are C libraries, and the libraries of languages.
func languages(t *testing.T) []client {
	t.Helper()
	netns.Require(t, "gcc", "musl-gcc", "javac", "java")
	requireFile(t, "/usr/include/ares.h", "libcares")
	requireFile(t, dnspython, "dnspython")
	folder := t.TempDir()
	build := func(program string, args ...string) {
		t.Helper()
		kit.Output(t, exec.Command(program, args...))
	}
	glibc, musl, cares := filepath.Join(folder, "glibc"), filepath.Join(folder, "musl"), filepath.Join(folder, "cares")
	const lookup = "../search/testdata/lookup.c"
	build("gcc", "-O1", "-o", glibc, lookup)
	build("musl-gcc", "-O1", "-static", "-o", musl, lookup)
	build("gcc", "-O1", "-Wall", "-Wno-deprecated-declarations", "-o", cares, "testdata/cares.c", "-lcares")
	build("javac", "-d", folder, "testdata/Lookup.java")
	return []client{
		{name: "glibc", types: onlyAddresses, sends: both(noEDNS, overUDP, pairs(true, 1)), run: getaddrinfo(glibc)},
		{name: "glibc with edns0", types: onlyAddresses, options: []string{"edns0", "trust-ad"},
			sends: both(edns, overUDP, pairs(true, 1)), run: getaddrinfo(glibc)},
		{name: "glibc with single-request", types: onlyAddresses, options: []string{"single-request"},
			sends: both(overUDP, pairs(false, 1)), run: getaddrinfo(glibc)},
		{name: "glibc with single-request-reopen", types: onlyAddresses, options: []string{"single-request-reopen"},
			sends: both(overUDP, pairs(false, 2)), run: getaddrinfo(glibc)},
		{name: "glibc with use-vc", types: onlyAddresses, options: []string{"use-vc"}, sends: overTCP, run: getaddrinfo(glibc)},
		{name: "musl", types: onlyAddresses, partial: true, run: getaddrinfo(musl)},
		{name: "c-ares", types: withoutAddresses, run: batch(cares)},
		{name: "Node", types: withoutAddresses, programs: []string{"node"}, hidesAliases: true, run: batch("node", "testdata/lookup.mjs")},
		{name: "Node with getaddrinfo", types: onlyAddresses, programs: []string{"node"}, run: batch("node", "testdata/lookup.mjs")},
		{name: "Java's JNDI", types: withoutAddresses, hidesAliases: true, run: batch("java", "-cp", folder, "Lookup")},
		{name: "Java's InetAddress", types: onlyAddresses, run: batch("java", "-cp", folder, "Lookup")},
		{name: "dnspython's resolver", types: withoutAddresses, programs: []string{python}, run: batch(python, "testdata/lookup.py")},
	}
}

// withoutAddresses are the types of a client that queries one type.
var withoutAddresses = []string{"A", "AAAA", "SRV", "PTR", "MX", "CNAME", "TXT"}

// batch runs a program of testdata once with all questions. Its output has a line "= TYPE/NAME" for each of them, followed by
// a line for each record and one with the status.
func batch(program string, args ...string) func(*testing.T, *netns.Namespace, string, []question) []reply {
	return func(t *testing.T, n *netns.Namespace, server string, all []question) (replies []reply) {
		t.Helper()
		command := append([]string{}, args...)
		command = append(command, server)
		for _, q := range all {
			command = append(command, q.String())
		}
		out := n.Run(t, program, command...)
		for line := range strings.Lines(out) {
			line = strings.TrimSpace(line)
			if question, found := strings.CutPrefix(line, "= "); found {
				if want := all[min(len(replies), len(all)-1)].String(); question != want {
					t.Errorf("output for %s, want %s", question, want)
				}
				replies = append(replies, reply{})
				continue
			}
			if len(replies) == 0 {
				t.Fatalf("output before the first question: %q", out)
			}
			last := &replies[len(replies)-1]
			if status, found := strings.CutPrefix(line, "status "); found {
				last.status = status
			} else {
				last.records = append(last.records, line)
			}
		}
		return replies
	}
}

// getaddrinfo runs the program of package search that calls getaddrinfo.
func getaddrinfo(program string) func(*testing.T, *netns.Namespace, string, []question) []reply {
	return func(t *testing.T, n *netns.Namespace, _ string, all []question) (replies []reply) {
		t.Helper()
		for _, q := range all {
			replies = append(replies, parseGetaddrinfo(t, n.Run(t, program, "any", q.name)))
		}
		return replies
	}
}

func parseGetaddrinfo(t *testing.T, out string) (r reply) {
	t.Helper()
	for line := range strings.Lines(out) {
		kind, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "canonical":
			r.status = "NOERROR"
		case "address":
			r.records = append(r.records, addressRecord(value))
		case "error":
			r.status = map[string]string{"none": "NXDOMAIN"}[value]
			if r.status == "" {
				r.status = value
			}
		default:
			t.Errorf("unexpected line %q", line)
		}
	}
	return r
}

// addressRecord is the record of an address.
func addressRecord(address string) string {
	if strings.Contains(address, ":") {
		return "AAAA " + address
	}
	return "A " + address
}

// requireFile fails or skips the test without a file of a package.
func requireFile(t *testing.T, path, part string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		kit.Lacking(t, fmt.Sprintf("%v; run test/install.sh %s", err, part))
	}
}
