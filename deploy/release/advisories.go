package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// vexDocument is a document of OpenVEX v0.2.0.
type vexDocument struct {
	Context    string         `json:"@context"`
	ID         string         `json:"@id"`
	Author     string         `json:"author"`
	Timestamp  string         `json:"timestamp"`
	Version    int            `json:"version"`
	Tooling    string         `json:"tooling,omitempty"`
	Statements []vexStatement `json:"statements"`
}

// vexStatement is the status of an advisory for products.
type vexStatement struct {
	Vulnerability   vexVulnerability `json:"vulnerability"`
	Products        []vexProduct     `json:"products"`
	Status          string           `json:"status"`
	Justification   string           `json:"justification,omitempty"`
	ImpactStatement string           `json:"impact_statement,omitempty"`
	ActionStatement string           `json:"action_statement,omitempty"`
}

type vexVulnerability struct {
	ID          string   `json:"@id,omitempty"`
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Aliases     []string `json:"aliases,omitempty"`
}

type vexProduct struct {
	ID            string       `json:"@id"`
	Subcomponents []vexProduct `json:"subcomponents,omitempty"`
}

// The statuses of OpenVEX that need no action.
const (
	notAffected = "not_affected"
	fixed       = "fixed"
)

// writeAdvisories writes the OpenVEX document. An advisory that affects a program, or has no reason why it does not, is an error.
func (r *release) writeAdvisories(ctx context.Context) error {
	var products []vexProduct
	for _, p := range programs {
		purl, _, err := r.imageOf(p)
		if err != nil {
			return err
		}
		products = append(products, vexProduct{ID: purl})
	}
	var args []string
	switch r.database {
	case "":
	case "module":
		folder, err := os.MkdirTemp("", "nearside-vulndb-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(folder) }()
		database, err := r.makeDatabase(ctx, folder)
		if err != nil {
			return err
		}
		args = append(args, "-db", database)
	default:
		args = append(args, "-db", r.database)
	}
	govulncheck, err := r.tool(ctx, "govulncheck", "golang.org/x/vuln/cmd/govulncheck")
	if err != nil {
		return err
	}
	version, err := r.output(ctx, govulncheck, append(args, "-version")...)
	if err != nil {
		return err
	}
	timestamp, err := r.timestamp(version)
	if err != nil {
		return err
	}
	var d vexDocument
	var runs [][]vexStatement
	for _, architecture := range architectures {
		c := exec.CommandContext(ctx, govulncheck, slices.Concat(args, []string{"-format", "openvex", "./cmd/..."})...)
		c.Dir, c.Env = r.root, append(os.Environ(), "GOTOOLCHAIN="+r.toolchain, "GOOS=linux", "GOARCH="+architecture, "CGO_ENABLED=0")
		out, err := c.Output()
		if err != nil {
			return fmt.Errorf("govulncheck for %s: %w%s", architecture, err, stderrOf(err))
		}
		d = vexDocument{}
		if err := json.Unmarshal(out, &d); err != nil {
			return fmt.Errorf("govulncheck for %s: %w", architecture, err)
		}
		runs = append(runs, d.Statements)
	}
	d.ID = "https://github.com/nearside-dns/nearside/releases/download/" + r.version + "/" + vexFile
	d.Author, d.Timestamp = "nearside", timestamp
	if d.Statements, err = statementsFor(runs, products); err != nil {
		return err
	}
	return r.writeJSON(vexFile, d)
}

// architectures are those of the images.
var architectures = []string{"amd64", "arm64"}

// databaseTime matches the time of a database's last change in the output of govulncheck -version.
var databaseTime = regexp.MustCompile(`(?m)^DB updated: (.+)$`)

// timestamp returns the time of the statements: that of the database's last change, and not before the commit. It does not depend on
// the time of the run.
func (r *release) timestamp(version string) (string, error) {
	found := databaseTime.FindStringSubmatch(version)
	if found == nil {
		return "", fmt.Errorf("govulncheck does not print the time of its database:\n%s", version)
	}
	changed, err := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", found[1])
	if err != nil {
		return "", err
	}
	if created := time.Unix(r.created, 0); changed.Before(created) {
		changed = created
	}
	return changed.UTC().Format(time.RFC3339), nil
}

const vexFile = "nearside.openvex.json"

// statementsFor returns the statements for the images, one for each advisory, with the modules of govulncheck's statements as their parts.
// If the runs for several architectures differ, the worst status counts.
func statementsFor(runs [][]vexStatement, images []vexProduct) (all []vexStatement, err error) {
	worst, parts := map[string]vexStatement{}, map[string][]vexProduct{}
	for _, s := range slices.Concat(runs...) {
		name := s.Vulnerability.Name
		if old, is := worst[name]; !is || concern(s) > concern(old) {
			worst[name] = s
		}
		for _, p := range s.Products {
			for _, part := range p.Subcomponents {
				if !slices.ContainsFunc(parts[name], func(known vexProduct) bool { return known.ID == part.ID }) {
					parts[name] = append(parts[name], part)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		s := worst[name]
		if concern(s) >= needsUpdate {
			err = errors.Join(err, refusal(s, parts[name]))
			continue
		}
		s.Products = nil
		for _, image := range images {
			s.Products = append(s.Products, vexProduct{ID: image.ID, Subcomponents: parts[name]})
		}
		all = append(all, s)
	}
	return all, err
}

// needsUpdate is the concern of a statement with which there is no release.
const needsUpdate = 2

// concern orders statements: about code that the programs do not contain, about code that they contain and do not call, and the others,
// which have no reason or need an update.
func concern(s vexStatement) int {
	switch {
	case s.Status == fixed, s.Status == notAffected && s.Justification == "vulnerable_code_not_present":
		return 0
	case s.Status == notAffected && (s.Justification != "" || s.ImpactStatement != ""):
		return 1
	}
	return needsUpdate
}

// refusal returns the error of an advisory with which there is no release.
func refusal(s vexStatement, parts []vexProduct) error {
	var modules []string
	for _, p := range parts {
		modules = append(modules, moduleOf(p.ID))
	}
	list := strings.Join(modules, " and ")
	if s.Status == notAffected {
		return fmt.Errorf("advisory %s has no reason why it does not affect %s", s.Vulnerability.Name, list)
	}
	return fmt.Errorf("advisory %s affects %s: update it", s.Vulnerability.Name, list)
}

// moduleOf returns the module and version of a package URL.
func moduleOf(purl string) string {
	module, err := url.PathUnescape(strings.TrimPrefix(purl, "pkg:golang/"))
	if err != nil {
		return purl
	}
	return module
}

// stderrOf returns the error output of a program that failed, on a line of its own.
func stderrOf(err error) string {
	if exit, is := err.(*exec.ExitError); is { //nolint:errorlint // Output returns it so
		return "\n" + string(exit.Stderr)
	}
	return ""
}

// tool builds a tool of deploy/release/tools, and returns its path.
func (r *release) tool(ctx context.Context, name, path string) (string, error) {
	folder := filepath.Join(r.root, "bin", "tools")
	target := filepath.Join(folder, name)
	c := exec.CommandContext(ctx, "go", "build", "-o", target, path)
	c.Dir, c.Env = filepath.Join(r.root, "deploy", "release", "tools"), append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out)
	}
	return target, nil
}
