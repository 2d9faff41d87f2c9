//go:build linux

package search

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// outcome is the result of a lookup by a resolver.
type outcome struct {
	addresses string // sorted
	canonical string // empty if the resolver does not return it
	failure   string // "none", "again", "fail"
}

func (o outcome) String() string {
	if o.failure != "" {
		return o.failure
	}
	return strings.TrimSpace(o.addresses + " " + o.canonical)
}

// families are the address families of lookups: both, IPv4, IPv6.
var families = []string{"any", "4", "6"}

// types returns the record types that a lookup for a family queries.
func types(family string) []string {
	return map[string][]string{"any": {"A", "AAAA"}, "4": {"A"}, "6": {"AAAA"}}[family]
}

// resolver is a resolver of a C library, a language or a tool.
type resolver struct {
	name string
	// command returns the command that looks up a name, nil if it does not support the family.
	command func(family, name string) []string
	parse   func(out string, err error) (outcome, error)
	// stopsAtNoData is set if a name without data of the type ends the search.
	stopsAtNoData bool
}

// resolvers builds the programs of all resolvers, until the end of the test.
func resolvers(t *testing.T) []resolver {
	t.Helper()
	netns.Require(t, "gcc", "musl-gcc", "getent", "dig")
	folder := t.TempDir()
	build := func(name, program string, args ...string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		cmd := exec.Command(program, append(args[:len(args)-1:len(args)-1], "-o", path, args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		kit.Output(t, cmd)
		return path
	}
	glibc := build("glibc", "gcc", "-O1", "testdata/lookup.c")
	musl := build("musl", "musl-gcc", "-O1", "-static", "testdata/lookup.c")
	golang := build("golookup", "go", "build", "./golookup")
	lookup := func(path string) func(family, name string) []string {
		return func(family, name string) []string { return []string{path, family, name} }
	}
	return []resolver{
		{name: "getent", command: getent, parse: parseGetent},
		{name: "glibc", command: lookup(glibc), parse: parseLookup},
		{name: "musl", command: lookup(musl), parse: parseLookup, stopsAtNoData: true},
		{name: "go", command: lookup(golang), parse: parseLookup},
		{name: "dig", command: digSearch, parse: parseDig, stopsAtNoData: true},
	}
}

func getent(family, name string) []string {
	switch family {
	case "any":
		return []string{"getent", "ahosts", name}
	case "4":
		return []string{"getent", "ahostsv4", name}
	}
	return nil // ahostsv6 maps IPv4 addresses to IPv6
}

// parseGetent parses lines of an address, a socket type and, in the first line, the canonical name.
func parseGetent(out string, err error) (o outcome, _ error) {
	if err != nil {
		if strings.TrimSpace(out) != "" {
			return o, err
		}
		return outcome{failure: "none"}, nil
	}
	var all []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		all = append(all, fields[0])
		if len(fields) > 2 {
			o.canonical = fields[2]
		}
	}
	o.addresses = sorted(all)
	return o, nil
}

// parseLookup parses the output of this package's programs.
func parseLookup(out string, err error) (o outcome, _ error) {
	if err != nil {
		return o, err
	}
	var all []string
	for line := range strings.Lines(out) {
		kind, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "error":
			o.failure = value
		case "canonical":
			o.canonical = value
		case "address":
			all = append(all, value)
		default:
			return o, fmt.Errorf("unexpected line %q", line)
		}
	}
	o.addresses = sorted(all)
	return o, nil
}

func digSearch(family, name string) []string {
	if family == "any" {
		return nil // dig queries one type
	}
	return []string{"dig", "+search", "+tries=1", "+time=10", "+nocmd", "+nostats", name, types(family)[0]}
}

// parseDig parses the reply in the output of dig.
func parseDig(out string, err error) (o outcome, _ error) {
	if err != nil {
		return o, err
	}
	replies := kit.ParseDig(out)
	if len(replies) != 1 {
		return o, fmt.Errorf("unexpected output of dig:\n%s", out)
	}
	var all []string
	for _, rr := range replies[0].Answer {
		if rr.Type == "A" || rr.Type == "AAAA" {
			all, o.canonical = append(all, rr.Data), strings.TrimSuffix(rr.Owner, ".")
		}
	}
	o.addresses = sorted(all)
	switch status := replies[0].Status; {
	case len(all) > 0:
	case status == "NOERROR" || status == "NXDOMAIN":
		o.failure = "none"
	case status == "SERVFAIL":
		o.failure = "again"
	default:
		return o, fmt.Errorf("unexpected output of dig:\n%s", out)
	}
	return o, nil
}

func sorted(all []string) string {
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// lookup looks up a name in a pod that is otherwise idle, and returns the queries that left the pod.
func (r resolver) lookup(p *pod, family, name string) (o outcome, sent []query, err error) {
	if err := p.packets.discard(); err != nil {
		return o, nil, err
	}
	if o, err = r.resolve(p, family, name); err != nil {
		return o, nil, err
	}
	sent, err = p.packets.queries()
	return o, sent, err
}

// resolve resolves a name in a pod. Several resolvers may do that at the same time.
func (r resolver) resolve(p *pod, family, name string) (outcome, error) {
	args := r.command(family, name)
	return r.parse(p.Try(args[0], args[1:]...))
}
