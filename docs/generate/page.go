package main

import (
	_ "embed" // the template of the page
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

//go:embed configuration.md.tmpl
var pageTemplate string

// printer runs a program with arguments and returns its output.
type printer func(program string, args ...string) (string, error)

// content has the data of the template.
type content struct {
	print   printer
	plugins []plugin
}

// plugin is a plugin with a README in this repository.
type plugin struct {
	Name     string
	readme   string // its path from the root of the repository
	sections []section
}

// Summary is the purpose without its full stop, for a table.
func (d directive) Summary() string { return strings.TrimSuffix(d.Purpose, ".") }

// page returns the page.
func page(root string, print printer) (string, error) {
	plugins, err := readPlugins(root)
	if err != nil {
		return "", err
	}
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := t.Execute(&b, content{print, plugins}); err != nil {
		return "", err
	}
	return b.String(), nil
}

func readPlugins(root string) (all []plugin, err error) {
	paths, err := filepath.Glob(filepath.Join(root, "plugin", "*", "README.md"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("no README of a plugin below %s", root)
	}
	for _, p := range paths { // sorted by Glob
		text, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(filepath.Dir(p))
		all = append(all, plugin{name, "plugin/" + name + "/README.md", sections(string(text))})
	}
	return all, nil
}

// Plugins are those of this repository, by name.
func (c content) Plugins() []plugin { return c.plugins }

// Section returns the text below a heading of the README, or "".
func (p plugin) Section(title string) string {
	for _, s := range p.sections {
		if s.title == title {
			return strings.TrimSpace(relinked(lower(s.text, 2), p.readme, pagePath))
		}
	}
	return ""
}

// Purpose is the line of the README that describes the plugin, without its name.
func (p plugin) Purpose() (string, error) {
	_, purpose, found := strings.Cut(strings.Join(strings.Fields(p.Section("Name")), " "), "* - ")
	if !found {
		return "", fmt.Errorf("%s: the section Name is not of the form *name* - purpose", p.readme)
	}
	return purpose, nil
}

// Link is the path of the README from the page.
func (p plugin) Link() string { return "../" + p.readme }

// invocation is a command line of a program and its output.
type invocation struct{ Line, Text string }

// command matches the commands of a program in its help.
var command = regexp.MustCompile(`(?m)^\s+\S+ (\S+) \[flags\];`)

// Help returns the help of the programs and of their commands.
func (c content) Help() (all []invocation, err error) {
	for _, name := range names {
		text, err := c.print(name, "-help")
		if err != nil {
			return nil, err
		}
		all = append(all, invocation{name, shown(text)})
		for _, found := range command.FindAllStringSubmatch(text, -1) {
			text, err := c.print(name, found[1], "-help")
			if err != nil {
				return nil, err
			}
			all = append(all, invocation{name + " " + found[1], shown(text)})
		}
	}
	return all, nil
}

// shown returns a help text for a block of code: with spaces instead of tabs.
func shown(text string) string {
	return strings.TrimSpace(strings.ReplaceAll(text, "    \t", "        "))
}

// directive is a row of the table of directives.
type directive struct {
	Name, Link, Purpose string
	In                  map[string]bool // by program
}

// Directives returns all directives of the programs, by name. An unknown one is an error, since the page would lack it.
func (c content) Directives() (all []directive, err error) {
	known := map[string]directive{}
	for name, purpose := range ofCoreDNS {
		known[name] = directive{Name: name, Purpose: purpose, Link: "https://coredns.io/plugins/" + pageOf(name) + "/"}
	}
	for _, p := range c.plugins {
		purpose, err := p.Purpose()
		if err != nil {
			return nil, err
		}
		known[p.Name] = directive{Name: p.Name, Purpose: purpose, Link: "#" + p.Name}
	}
	used := map[string]directive{}
	for _, program := range names {
		text, err := c.print(program, "-plugins")
		if err != nil {
			return nil, err
		}
		for _, name := range strings.Fields(text) {
			d, found := known[name]
			if !found {
				return nil, fmt.Errorf("directive %s of %s: it has neither a README in plugin/%[1]s nor a line in ofCoreDNS", name, program)
			}
			if _, found := used[name]; !found {
				d.In = map[string]bool{}
				used[name] = d
			}
			used[name].In[program] = true
		}
	}
	if len(used) == 0 {
		return nil, errors.New("the programs list no directives")
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		all = append(all, used[name])
	}
	return all, nil
}

// pageOf returns the name of a directive's page at coredns.io.
func pageOf(directive string) string {
	if directive == "prometheus" {
		return "metrics"
	}
	return directive
}

// ofCoreDNS has the purpose of each directive that comes with CoreDNS.
var ofCoreDNS = map[string]string{
	"acl":         "answers or drops queries by the client's address and the type",
	"any":         "answers queries of type ANY with one record (RFC 8482)",
	"auto":        "answers from the zone files of a folder",
	"bind":        "sets the addresses or interfaces on which a server block listens",
	"bufsize":     "limits the UDP size that clients advertise with EDNS",
	"cancel":      "ends queries that the plugins have not answered within a time",
	"chaos":       "answers `version.bind` and others in class CH",
	"debug":       "lets a panic end the process, and enables debug logs of plugins",
	"dns64":       "makes AAAA records from A records for clients with IPv6 only. With `translate_all`, a name without A records is answered with its AAAA records: CoreDNS's answer is empty",
	"dnstap":      "sends queries and replies to a collector (dnstap)",
	"errors":      "logs the errors of plugins, and can summarize those that match a pattern (`consolidate`)",
	"file":        "answers from a zone file",
	"grpc":        "forwards queries over gRPC",
	"header":      "sets or clears the flags AA, RA and RD",
	"health":      "serves `/health` over HTTP while the process runs, and delays the exit after SIGTERM (`lameduck`)",
	"hosts":       "answers with addresses from a file like /etc/hosts, or from lines of the Corefile",
	"loadbalance": "changes the order of the addresses in answers",
	"local":       "answers names of the host: `localhost`, 127.0.0.0/8",
	"log":         "logs queries",
	"loop":        "ends the process at the start if forwarded queries loop back to it",
	"metadata":    "lets plugins add data to a query, for `log` and `rewrite`",
	"minimal":     "removes the authority and additional sections from answers",
	"multisocket": "opens several sockets for an address; with a fast path there is one for each CPU anyway",
	"nsid":        "answers with the server's name if the client asks for it (RFC 5001)",
	"pprof":       "serves profiles of the process over HTTP",
	"prometheus":  "serves metrics over HTTP",
	"proxyproto":  "accepts the PROXY protocol",
	"ready":       "serves `/ready` over HTTP, which succeeds once the plugins are ready",
	"reload":      "reads the Corefile again when it has changed",
	"rewrite":     "changes queries, and reverts the change in answers",
	"root":        "sets the folder of the files of other plugins",
	"secondary":   "answers from zones that it transfers from a primary server",
	"dynupdate":   "accepts updates of a zone (RFC 2136), with keys of `tsig`",
	"on":          "runs a command when the server starts or stops",
	"shed":        "drops queries over UDP while replies of CoreDNS's own socket wait",
	"siit":        "makes A records from AAAA records, for networks that translate IPv4 to IPv6",
	"template":    "creates answers from a template",
	"timeouts":    "sets the timeouts of TCP connections, and the number of queries of one",
	"transfer":    "answers zone transfers (AXFR) and sends NOTIFY",
	"tsig":        "verifies signed queries, and signs the replies",
	"view":        "selects a server block by an expression",
	"erratic":     "drops, delays or truncates answers, for tests of clients",
	"grpc_server": "limits connections and queries of DNS over gRPC",
	"https":       "limits connections and queries of DNS over HTTPS",
	"https3":      "limits connections and queries of DNS over HTTP/3",
	"quic":        "limits connections and queries of DNS over QUIC",
	"sign":        "signs zone files at intervals, for `file` and `auto`",
	"whoami":      "answers with the address and port of the client",
}
