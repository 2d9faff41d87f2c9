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

// publish signs the checksums, and pushes and signs the images and the chart. An image has its tag only when all signatures of the images
// are in the registry. Helm pushes the chart with its tag, so that its signature follows.
func (r *release) publish(ctx context.Context) error {
	cosign, err := r.tool(ctx, "cosign", "github.com/sigstore/cosign/v3/cmd/cosign")
	if err != nil {
		return err
	}
	sums := filepath.Join(r.folder, sumsFile)
	if err := r.cosign(ctx, cosign, "sign-blob", "--bundle", sums+".sigstore.json", sums); err != nil {
		return err
	}
	for _, program := range programs {
		if err := r.publishImage(ctx, cosign, program); err != nil {
			return err
		}
	}
	for _, program := range programs {
		if err := r.pushImage(ctx, program, "-tag"); err != nil {
			return err
		}
	}
	digest, err := r.pushChart(ctx)
	if err != nil {
		return err
	}
	return r.cosign(ctx, cosign, "sign", r.repository+"/charts/nearside@"+digest)
}

// publishImage pushes an image without a tag, signs it and attaches its documents.
func (r *release) publishImage(ctx context.Context, cosign, program string) error {
	if err := r.pushImage(ctx, program); err != nil {
		return err
	}
	_, digest, err := r.imageOf(program)
	if err != nil {
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
	return nil
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

// pushImage pushes the archive of a program's image, if it has the digest of the bill of materials.
func (r *release) pushImage(ctx context.Context, program string, options ...string) error {
	_, digest, err := r.imageOf(program)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, "go", append([]string{"run", ".", "-push", filepath.Join(r.folder, program+".tar"),
		"-repository", r.repository, "-version", r.version, "-digest", digest}, options...)...)
	c.Dir, c.Env = filepath.Join(r.root, "deploy", "image"), append(os.Environ(), "GOWORK=off")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("push of %s: %w\n%s", program, err, out)
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
	args := []string{"push", r.chartFile(), "oci://" + r.repository + "/charts"}
	if strings.HasPrefix(r.repository, "127.0.0.1:") {
		args = append(args, "--plain-http")
	}
	c := exec.CommandContext(ctx, helm, args...)
	c.Env = append(os.Environ(), "TZ=UTC") // of the file's time in the manifest
	out, err := c.CombinedOutput()         // Helm prints the digest as an error output
	if err != nil {
		return "", fmt.Errorf("push of the chart: %w\n%s", err, out)
	}
	found := pushedDigest.FindStringSubmatch(string(out))
	if found == nil {
		return "", fmt.Errorf("push of the chart: no digest in %q", out)
	}
	return found[1], nil
}
