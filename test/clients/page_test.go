//go:build linux

package clients

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// resultsVariable is the environment variable with the path of the page that the tests write.
const resultsVariable = "NEARSIDE_CLIENT_RESULTS"

// page collects the results of this run.
var page results

type results struct {
	clients   []string // lines of a table
	edns      []string
	messages  []string
	questions int // that messages.py knows
}

// write writes the page, if all tests have passed.
func (r *results) write(path string) error {
	return os.WriteFile(path, []byte(fmt.Sprintf(`# Programs of others as clients

%s writes this page: the programs of others query clusterdns, and nodecache in front of it, and each result is
compared with the records of the cluster.

## Resolvers and tools

| client | version | questions | clusterdns | nodecache |
|---|---|---|---|---|
%s

The versions are those of the machine that wrote this page; the tests do not depend on them. Where a client has options that change
its queries (EDNS, a cookie, padding, TCP, one query at a time), its queries pass a recorder, and have to show the option.
musl before 1.2.4 has no TCP: of %d addresses it uses those of the truncated reply. A client with getaddrinfo looks up
addresses only. Node and JNDI do not print the CNAME records of a chain.

## ldns-test-edns

%s

## Random messages of dnspython

dnspython packs the messages and parses the replies. A known question is one of %d, with the wanted reply: records, code, AA and
TTL. An unknown one has a random name, type and opcode, and the reply the code of its zone and opcode. A broken message has
random bytes changed, cut or added: with a complete header of a query it must have one reply, with a code of its header, and
otherwise (no-query) none. Only a NOTIFY may remain without one.

%s
`, "`make clients`", lines(r.clients), endpoints, lines(r.edns), r.questions, lines(r.messages))), 0o644)
}

func lines(all []string) string { return strings.Join(all, "\n") }

// versions are the commands that print the versions of clients.
var versions = map[string][]string{
	"dig":         {"dig", "-v"},
	"kdig":        {"kdig", "--version"},
	"drill":       {"drill", "-v"},
	"delv":        {"delv", "-v"},
	"glibc":       {"ldd", "--version"},
	"musl":        {"dpkg-query", "-W", "-f", "musl ${Version}", "musl-tools"},
	"c-ares":      {"dpkg-query", "-W", "-f", "c-ares ${Version}", "libc-ares-dev"},
	"Node":        {"node", "-p", "`Node ${process.version}, c-ares ${process.versions.ares}`"},
	"Java's":      {"java", "--version"},
	"dnspython's": {python, "-c", "import dns.version; print('dnspython', dns.version.version)"},
}

// version returns the first line of a client's version.
func version(t *testing.T, name string) string {
	t.Helper()
	command := versions[strings.Fields(name)[0]]
	if name == "systemd-resolved" {
		command = []string{resolvedProgram(t), "--version"}
	}
	if command == nil {
		t.Fatalf("no command for the version of %s", name)
	}
	out := kit.Output(t, exec.Command(command[0], command[1:]...))
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	return line
}
