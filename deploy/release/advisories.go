package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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
	args := []string{"-format", "openvex"}
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
	c := exec.CommandContext(ctx, govulncheck, append(args, "./cmd/...")...)
	c.Dir, c.Env = r.root, append(os.Environ(), "GOTOOLCHAIN="+r.toolchain, "GOOS=linux", "CGO_ENABLED=0")
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("govulncheck: %w%s", err, stderrOf(err))
	}
	var d vexDocument
	if err := json.Unmarshal(out, &d); err != nil {
		return fmt.Errorf("govulncheck: %w", err)
	}
	d.ID = "https://github.com/nearside-dns/nearside/releases/download/" + r.version + "/" + vexFile
	d.Author, d.Timestamp = "nearside", time.Unix(r.created, 0).UTC().Format(time.RFC3339)
	if d.Statements, err = statementsFor(d.Statements, products); err != nil {
		return err
	}
	return r.writeJSON(vexFile, d)
}

const vexFile = "nearside.openvex.json"

// statementsFor returns the statements for the images, with the modules of govulncheck's statements as their parts.
func statementsFor(statements []vexStatement, images []vexProduct) ([]vexStatement, error) {
	affected := map[string]bool{}
	for i := range statements {
		s := &statements[i]
		if s.Status != notAffected && s.Status != fixed || s.Status == notAffected && s.Justification == "" && s.ImpactStatement == "" {
			affected[s.Vulnerability.Name+" ("+s.Status+")"] = true
		}
		var parts []vexProduct
		for _, p := range s.Products {
			parts = append(parts, p.Subcomponents...)
		}
		s.Products = nil
		for _, image := range images {
			s.Products = append(s.Products, vexProduct{ID: image.ID, Subcomponents: parts})
		}
	}
	if len(affected) > 0 {
		return nil, fmt.Errorf("update the modules of %s", strings.Join(slices.Sorted(maps.Keys(affected)), ", "))
	}
	return statements, nil
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
