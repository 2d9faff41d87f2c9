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

// printer returns what a program prints if it is started with arguments.
type printer func(program string, args ...string) (string, error)

// content is what the template can ask for.
type content struct {
	print   printer
	plugins []plugin
}

// plugin is one with a README in this repository.
type plugin struct {
	Name     string
	readme   string // its path from the root of the repository
	sections []section
}

// Summary is the purpose as it stands in a table.
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
	for _, p := range paths { // they are sorted
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

// Section returns what the README says under a heading, and nothing if it has none.
func (p plugin) Section(title string) string {
	for _, s := range p.sections {
		if s.title == title {
			return strings.TrimSpace(relinked(lower(s.text, 2), p.readme, pagePath))
		}
	}
	return ""
}

// Purpose is the line that says what the plugin does, without its name.
func (p plugin) Purpose() (string, error) {
	_, purpose, found := strings.Cut(strings.Join(strings.Fields(p.Section("Name")), " "), "* - ")
	if !found {
		return "", fmt.Errorf("%s: the section Name is not of the form *name* - what it does", p.readme)
	}
	return purpose, nil
}

// Link leads to the README from the page.
func (p plugin) Link() string { return "../" + p.readme }

// invocation is a command line of a program and what it prints.
type invocation struct{ Line, Text string }

// command finds the commands of a program in what it says of its use.
var command = regexp.MustCompile(`(?m)^\s+\S+ (\S+) \[flags\];`)

// Help returns what the programs and their commands say of their flags.
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

// shown is a text as it stands in a block of code.
func shown(text string) string {
	return strings.TrimSpace(strings.ReplaceAll(text, "    \t", "        "))
}

// directive is a row of the table of directives.
type directive struct {
	Name, Link, Purpose string
	In                  map[string]bool // by program
}

// Directives returns all that a Corefile may have, by name. One of which nothing is known is an error: it would be
// missing from the page.
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
		return nil, errors.New("the programs name no directives")
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		all = append(all, used[name])
	}
	return all, nil
}

// pageOf is how the site of CoreDNS calls the page of a directive.
func pageOf(directive string) string {
	if directive == "prometheus" {
		return "metrics"
	}
	return directive
}

// ofCoreDNS says what the directives do that are CoreDNS's own, as they come with CoreDNS.
var ofCoreDNS = map[string]string{
	"bind":        "says on which addresses or interfaces a server block listens",
	"debug":       "lets a panic end the process, and prints what plugins log for debugging",
	"errors":      "logs the errors of plugins, and can sum up those that match a pattern (`consolidate`)",
	"health":      "answers `/health` over HTTP while the process runs, and lets it run on for a while after SIGTERM (`lameduck`)",
	"hosts":       "answers addresses from a file in the form of /etc/hosts, or from lines of the Corefile",
	"log":         "logs queries",
	"loop":        "ends the process at the start if queries that it forwards come back to it",
	"loadbalance": "changes the order of the addresses in answers",
	"metadata":    "lets plugins say more of a query, which `log` and `rewrite` can use",
	"pprof":       "answers profiles of the process over HTTP",
	"prometheus":  "answers metrics over HTTP",
	"ready":       "answers `/ready` over HTTP once the plugins are",
	"reload":      "reads the Corefile again when it has changed",
	"rewrite":     "changes queries, and answers back",
	"template":    "makes answers from a template",
	"transfer":    "answers zone transfers (AXFR) and sends NOTIFY",
	"whoami":      "answers with the address and port of who asks",
}
