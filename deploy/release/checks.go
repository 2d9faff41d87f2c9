package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// versionForm is Semantic Versioning without build metadata, which a tag of an image cannot have.
var versionForm = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// number is the version without "v".
func (r *release) number() string { return strings.TrimPrefix(r.version, "v") }

// output runs a program in the repository, with the environment of the build, and returns its output.
func (r *release) output(ctx context.Context, program string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = r.root
	c.Env = slices.Concat(os.Environ(), []string{"SOURCE_DATE_EPOCH=" + strconv.FormatInt(r.created, 10)}, r.environment) // for Helm
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}

// checkTree reads the commit. A changed or unknown file is an error, and so is a tag of the version at another commit; a push needs
// the tag, and a commit of the main branch.
func (r *release) checkTree(ctx context.Context) error {
	changed, err := r.output(ctx, "git", "status", "--porcelain", "--untracked-files=all")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("the tree has changes that are not committed:\n%s", strings.TrimSuffix(changed, "\n"))
	}
	text, err := r.output(ctx, "git", "log", "-1", "--format=%H %ct")
	if err != nil {
		return err
	}
	commit, seconds, _ := strings.Cut(strings.TrimSpace(text), " ")
	if r.created, err = strconv.ParseInt(seconds, 10, 64); err != nil {
		return err
	}
	r.commit = commit
	tagged, err := r.output(ctx, "git", "rev-parse", "--quiet", "--verify", "refs/tags/"+r.version+"^{commit}")
	switch {
	case err == nil && strings.TrimSpace(tagged) != commit:
		return fmt.Errorf("tag %s is at %s, not at %s, which is checked out", r.version, strings.TrimSpace(tagged), commit)
	case err != nil && r.push:
		return fmt.Errorf("tag %s does not exist", r.version)
	}
	r.tagged = err == nil
	if r.push {
		if _, err := r.output(ctx, "git", "merge-base", "--is-ancestor", commit, mainBranch); err != nil {
			return fmt.Errorf("%s is not a commit of %s: %w", commit, mainBranch, err)
		}
	}
	return nil
}

// mainBranch has the commits that may be released.
const mainBranch = "origin/main"

// toolchainLine is the line of go.mod with the Go toolchain of releases.
var toolchainLine = regexp.MustCompile(`(?m)^toolchain (go\S+)$`)

// readToolchain reads the toolchain of go.mod, with which every machine builds the same images. It may be newer than that of the machine:
// the go command downloads it.
func (r *release) readToolchain(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.root, "go.mod"))
	if err != nil {
		return err
	}
	found := toolchainLine.FindSubmatch(text)
	if found == nil {
		return errors.New("go.mod has no toolchain")
	}
	r.toolchain = string(found[1])
	return nil
}

// checkMaintainers checks that MAINTAINERS.md names a maintainer, on whom SECURITY.md depends for each release.
func (r *release) checkMaintainers(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.root, "MAINTAINERS.md"))
	if err != nil {
		return err
	}
	if !maintainerRow.Match(text) {
		return errors.New("the table of MAINTAINERS.md is empty")
	}
	return nil
}

// maintainerRow is the first row of a table with three columns.
var maintainerRow = regexp.MustCompile(`(?m)^\|---\|---\|---\|\n\| *[^| ][^|\n]*\|`)

// checkChangelog reads the changelog's part for the version, which has a date and entries.
func (r *release) checkChangelog(context.Context) error {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	r.changes, err = changesOf(string(text), r.number())
	return err
}

// changesOf returns the entries of a version in a changelog, in the form of Keep a Changelog.
func changesOf(text, number string) (string, error) {
	heading := regexp.MustCompile(`(?m)^## \[` + regexp.QuoteMeta(number) + `\] - \d{4}-\d{2}-\d{2}$`)
	place := heading.FindStringIndex(text)
	if place == nil {
		return "", fmt.Errorf("CHANGELOG.md has no heading \"## [%s] - YYYY-MM-DD\"", number)
	}
	changes, _, _ := strings.Cut(text[place[1]:], "\n## ")
	if !strings.Contains(changes, "\n- ") {
		return "", fmt.Errorf("CHANGELOG.md has no entry for %s", number)
	}
	return strings.TrimSpace(changes), nil
}
