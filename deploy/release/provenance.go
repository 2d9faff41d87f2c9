package main

import (
	"context"
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
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest,omitempty"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
}

const repositoryURL = "https://github.com/nearside-dns/nearside"

// writeProvenance writes the provenance of each image. The modules and their checksums are in go.sum of the commit, and in the bill of materials.
func (r *release) writeProvenance(context.Context) error {
	for _, program := range programs {
		p := provenance{BuildDefinition: buildDefinition{
			BuildType: repositoryURL + "/blob/" + r.version + "/docs/releases.md",
			ExternalParameters: map[string]string{
				"source": "git+" + repositoryURL + "@refs/tags/" + r.version, "target": "image", "program": program,
				"VERSION": r.version, "REPOSITORY": r.repository,
			},
			ResolvedDependencies: []dependency{
				{URI: "git+" + repositoryURL + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.commit}},
				{URI: "pkg:golang/toolchain@" + strings.TrimPrefix(r.toolchain, "go")},
			},
		}}
		p.RunDetails.Builder.ID = r.builder
		if err := r.writeJSON(program+".provenance.json", p); err != nil {
			return err
		}
	}
	return nil
}
