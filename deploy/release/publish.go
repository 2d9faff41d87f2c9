package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// attestations are the documents that are attached to an image, by cosign's type, with the file's name.
func attestations(program string) map[string]string {
	return map[string]string{"slsaprovenance1": program + ".provenance.json", "cyclonedx": program + ".sbom.json", "openvex": vexFile}
}

// publish pushes and signs the images and the chart.
func (r *release) publish(ctx context.Context) error {
	if strings.HasPrefix(r.repository, noRegistry+"/") {
		return fmt.Errorf("the images have no registry: set -repository")
	}
	cosign, err := r.tool(ctx, "cosign", "github.com/sigstore/cosign/v3/cmd/cosign")
	if err != nil {
		return err
	}
	for _, program := range programs {
		_, digest, err := r.imageOf(program)
		if err != nil {
			return err
		}
		if err := r.pushImage(ctx, program, digest); err != nil {
			return err
		}
		image := r.repository + "/" + program + "@" + digest
		if err := r.cosign(ctx, cosign, "sign", image); err != nil {
			return err
		}
		for kind, file := range attestations(program) {
			if err := r.cosign(ctx, cosign, "attest", "--type", kind, "--predicate", filepath.Join(r.folder, file), image); err != nil {
				return err
			}
		}
	}
	digest, err := r.pushChart(ctx)
	if err != nil {
		return err
	}
	return r.cosign(ctx, cosign, "sign", r.repository+"/charts/nearside@"+digest)
}

// cosign signs with the key and without an entry in a public log, or with the identity of the workflow.
func (r *release) cosign(ctx context.Context, program, command string, args ...string) error {
	options := []string{command, "--yes"}
	if r.key != "" {
		services, err := r.output(ctx, program, "signing-config", "create") // without services, of which a log is one
		if err != nil {
			return err
		}
		file := filepath.Join(r.root, "bin", "tools", "signing-config.json")
		if err := os.WriteFile(file, []byte(services), 0o600); err != nil {
			return err
		}
		options = append(options, "--key", r.key, "--signing-config", file)
	}
	_, err := r.output(ctx, program, append(options, args...)...)
	return err
}

// pushImage pushes the archive of an image, which has to have the digest.
func (r *release) pushImage(ctx context.Context, program, digest string) error {
	c := exec.CommandContext(ctx, "go", "run", ".", "-push", filepath.Join(r.folder, program+".tar"), "-repository", r.repository, "-version", r.version)
	c.Dir, c.Env = filepath.Join(r.root, "deploy", "image"), append(os.Environ(), "GOWORK=off")
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("push of %s: %w%s", program, err, stderrOf(err))
	}
	if !strings.Contains(string(out), digest) {
		return fmt.Errorf("push of %s: the registry has %s, want %s", program, strings.TrimSpace(string(out)), digest)
	}
	return nil
}

var pushedDigest = regexp.MustCompile(`(?m)^Digest: (sha256:[0-9a-f]{64})$`)

// pushChart pushes the chart as an OCI artifact, and returns its digest.
func (r *release) pushChart(ctx context.Context) (digest string, err error) {
	helm, err := r.helm(ctx)
	if err != nil {
		return "", err
	}
	args := []string{"push", filepath.Join(r.folder, "nearside-"+r.number()+".tgz"), "oci://" + r.repository + "/charts"}
	if strings.HasPrefix(r.repository, "127.0.0.1:") {
		args = append(args, "--plain-http")
	}
	c := exec.CommandContext(ctx, helm, args...)
	out, err := c.CombinedOutput() // Helm prints the digest as an error output
	if err != nil {
		return "", fmt.Errorf("push of the chart: %w\n%s", err, out)
	}
	found := pushedDigest.FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("push of the chart: no digest in %q", out)
	}
	return found[1], nil
}
