package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// databaseModule is the module with the advisories of the Go project's database, for machines that reach a module proxy and no
// other server.
const databaseModule = "golang.org/x/vulndb"

// advisory has the fields of an advisory in OSV form that the index of a database has.
type advisory struct {
	ID        string   `json:"id"`
	Modified  string   `json:"modified"`
	Withdrawn string   `json:"withdrawn"`
	Aliases   []string `json:"aliases"`
	Affected  []struct {
		Module struct {
			Name string `json:"name"`
		} `json:"package"`
		Ranges []struct {
			Events []struct {
				Fixed string `json:"fixed"`
			} `json:"events"`
		} `json:"ranges"`
	} `json:"affected"`
}

// indexedModule is an entry of index/modules.json of a database, https://go.dev/doc/security/vuln/database.
type indexedModule struct {
	Path            string            `json:"path"`
	Vulnerabilities []indexedAdvisory `json:"vulns"`
}

type indexedAdvisory struct {
	ID       string `json:"id"`
	Modified string `json:"modified"`
	Fixed    string `json:"fixed,omitempty"`
}

// makeDatabase writes a database with the advisories of the newest version of its module into a folder, and returns its URL.
func (r *release) makeDatabase(ctx context.Context, folder string) (string, error) {
	c := exec.CommandContext(ctx, "go", "mod", "download", "-json", databaseModule+"@latest")
	c.Dir, c.Env = folder, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w%s", databaseModule, err, stderrOf(err))
	}
	var module struct{ Dir, Version string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", err
	}
	fmt.Fprintf(r.log, "release: advisories of %s %s\n", databaseModule, module.Version)
	return writeDatabase(filepath.Join(module.Dir, "data", "osv"), folder)
}

// writeDatabase writes the advisories of a folder and their index into another one, as a database whose URL it returns.
func writeDatabase(from, to string) (string, error) {
	for _, folder := range []string{"ID", "index"} {
		if err := os.MkdirAll(filepath.Join(to, folder), 0o755); err != nil {
			return "", err
		}
	}
	files, err := filepath.Glob(filepath.Join(from, "*.json"))
	if err != nil {
		return "", err
	}
	if len(files) == 0 {
		return "", fmt.Errorf("%s has no advisories", from)
	}
	modules, newest := map[string][]indexedAdvisory{}, ""
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		var a advisory
		if err := json.Unmarshal(text, &a); err != nil {
			return "", fmt.Errorf("%s: %w", file, err)
		}
		if a.Withdrawn != "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(to, "ID", a.ID+".json"), text, 0o644); err != nil {
			return "", err
		}
		newest = max(newest, a.Modified)
		for path, fixed := range a.fixed() {
			modules[path] = append(modules[path], indexedAdvisory{a.ID, a.Modified, fixed})
		}
	}
	var index []indexedModule
	for path, advisories := range modules {
		index = append(index, indexedModule{path, advisories})
	}
	slices.SortFunc(index, func(a, b indexedModule) int { return strings.Compare(a.Path, b.Path) })
	for name, value := range map[string]any{"db": map[string]string{"modified": newest}, "modules": index} {
		text, err := json.Marshal(value)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(to, "index", name+".json"), text, 0o644); err != nil {
			return "", err
		}
	}
	absolute, err := filepath.Abs(to)
	return (&url.URL{Scheme: "file", Path: absolute}).String(), err
}

// fixed returns the modules of an advisory with the last version that fixes it, "" without one.
func (a *advisory) fixed() map[string]string {
	versions := map[string]string{}
	for _, affected := range a.Affected {
		versions[affected.Module.Name] = ""
		for _, r := range affected.Ranges {
			for _, e := range r.Events {
				if e.Fixed != "" {
					versions[affected.Module.Name] = e.Fixed
				}
			}
		}
	}
	return versions
}
