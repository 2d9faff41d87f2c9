package main

import (
	"context"
	"net/url"
	"os"
	"regexp"
	"strings"
)

// provenance is the predicate of SLSA provenance v1.
type provenance struct {
	BuildDefinition buildDefinition `json:"buildDefinition"`
	RunDetails      runDetails      `json:"runDetails"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	ResolvedDependencies []dependency      `json:"resolvedDependencies"`
}

// dependency is a ResourceDescriptor of in-toto.
type dependency struct {
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
	Metadata *runMetadata `json:"metadata,omitempty"`
}

type runMetadata struct {
	InvocationID string `json:"invocationId"`
}

const repositoryURL = "https://github.com/nearside-dns/nearside"

// writeProvenance writes the provenance of each image. The modules and their checksums are in go.sum of the commit, and in the bill of materials.
func (r *release) writeProvenance(ctx context.Context) error {
	source := r.source(ctx)
	for _, program := range programs {
		p := provenance{BuildDefinition: buildDefinition{
			BuildType: repositoryURL + "/blob/" + r.version + "/docs/releases.md",
			ExternalParameters: map[string]string{
				"target": "image", "program": program, "VERSION": r.version, "REPOSITORY": r.repository,
			},
			ResolvedDependencies: []dependency{
				{URI: source, Digest: map[string]string{"gitCommit": r.commit}},
				{URI: "pkg:golang/toolchain@" + strings.TrimPrefix(r.toolchain, "go")},
			},
		}}
		if source != "" {
			p.BuildDefinition.ExternalParameters["source"] = source
		}
		p.RunDetails.Builder.ID = r.builder
		if id := os.Getenv("GITHUB_RUN_ID"); id != "" {
			p.RunDetails.Metadata = &runMetadata{actionsRepository() + "/actions/runs/" + id + "/attempts/" + os.Getenv("GITHUB_RUN_ATTEMPT")}
		}
		if err := r.writeJSON(program+".provenance.json", p); err != nil {
			return err
		}
	}
	return nil
}

// actionsRepository returns the address of the repository whose workflow runs, "" outside of GitHub's Actions.
func actionsRepository() string {
	if os.Getenv("GITHUB_REPOSITORY") == "" {
		return ""
	}
	return os.Getenv("GITHUB_SERVER_URL") + "/" + os.Getenv("GITHUB_REPOSITORY")
}

// source returns the URI of the repository, with the tag if it exists: that of the workflow, or of the remote origin. It is "" if there is
// none on another machine.
func (r *release) source(ctx context.Context) string {
	address := actionsRepository()
	if address == "" {
		origin, err := r.output(ctx, "git", "remote", "get-url", "origin")
		if err != nil {
			return "" // git has no remote of this name
		}
		address = strings.TrimSpace(origin)
	}
	source := sourceOf(address)
	if source != "" && r.tagged {
		source += "@refs/tags/" + r.version
	}
	return source
}

// secureShell is the short form of an address of git over SSH.
var secureShell = regexp.MustCompile(`^(?:[\w.-]+@)?([\w.-]+):([^/].*)$`)

// sourceOf returns the URI of a repository in the form of SPDX, without credentials; "" for a folder of this machine.
func sourceOf(address string) string {
	if short := secureShell.FindStringSubmatch(address); short != nil {
		address = "ssh://" + short[1] + "/" + short[2]
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return ""
	}
	u.User = nil
	return "git+" + strings.TrimSuffix(u.String(), ".git")
}
