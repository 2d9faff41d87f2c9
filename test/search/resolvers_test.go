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

	"github.com/nearside-dns/nearside/test/netns"
)

// outcome is what a resolver says of a name.
type outcome struct {
	addresses string // sorted
	canonical string // empty if the resolver does not tell
	failure   string // "none", "again", "fail"
}

func (o outcome) String() string {
	if o.failure != "" {
		return o.failure
	}
	return strings.TrimSpace(o.addresses + " " + o.canonical)
}

// families are what an address is looked up for: both, IPv4, IPv6.
var families = []string{"any", "4", "6"}

// types are the record types that a lookup for a family asks for.
func types(family string) []string {
	return map[string][]string{"any": {"A", "AAAA"}, "4": {"A"}, "6": {"AAAA"}}[family]
}

// resolving is a resolver of the machine's or of a language's, as programs of a pod have it.
type resolving struct {
	name string
	// command returns the program that looks a name up, nil if it can't for that family.
	command func(family, name string) []string
	parse   func(out string, err error) (outcome, error)
	// stopsAtNoData tells that a name that exists ends the search, with data or not.
	stopsAtNoData bool
}

// resolvers returns all, of which programs are built, until the end of the test.
func resolvers(t *testing.T) []resolving {
	t.Helper()
	netns.Require(t, "gcc", "musl-gcc", "getent", "dig")
	folder := t.TempDir()
	build := func(name, program string, args ...string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		cmd := exec.Command(program, append(args[:len(args)-1:len(args)-1], "-o", path, args[len(args)-1])...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", name, err, out)
		}
		return path
	}
	glibc := build("glibc", "gcc", "-O1", "testdata/lookup.c")
	musl := build("musl", "musl-gcc", "-O1", "-static", "testdata/lookup.c")
	golang := build("golookup", "go", "build", "./golookup")
	lookup := func(path string) func(family, name string) []string {
		return func(family, name string) []string { return []string{path, family, name} }
	}
	return []resolving{
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
	return nil // ahostsv6 makes IPv6 addresses of IPv4 ones
}

// parseGetent reads lines of an address, a kind of socket and, in the first, the canonical name.
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

// parseLookup reads what the programs of this package print.
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
		return nil // it asks for one type
	}
	return []string{"dig", "+search", "+tries=1", "+time=10", "+nocmd", "+nostats", name, types(family)[0]}
}

// parseDig reads what dig prints of a reply.
func parseDig(out string, err error) (o outcome, _ error) {
	if err != nil {
		return o, err
	}
	var all []string
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 5 && (fields[3] == "A" || fields[3] == "AAAA") && fields[0][0] != ';' {
			all, o.canonical = append(all, fields[4]), strings.TrimSuffix(fields[0], ".")
		}
	}
	o.addresses = sorted(all)
	switch {
	case len(all) > 0:
	case strings.Contains(out, "status: NOERROR") || strings.Contains(out, "status: NXDOMAIN"):
		o.failure = "none"
	case strings.Contains(out, "status: SERVFAIL"):
		o.failure = "again"
	default:
		return o, fmt.Errorf("dig says:\n%s", out)
	}
	return o, nil
}

func sorted(all []string) string {
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

// lookup looks a name up in a pod that does nothing else, and returns the queries that left the pod for it too.
func (r resolving) lookup(p *pod, family, name string) (o outcome, sent []query, err error) {
	if err := p.packets.discard(); err != nil {
		return o, nil, err
	}
	args := r.command(family, name)
	out, err := p.Try(args[0], args[1:]...)
	if o, err = r.parse(out, err); err != nil {
		return o, nil, err
	}
	sent, err = p.packets.queries()
	return o, sent, err
}
