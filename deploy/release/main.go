// Command release makes the files of a release from the commit that is checked out, and checks them: images, their bills of materials and
// provenance, the chart and man pages, all of them from two builds, then the advisories that do not affect the programs, and checksums.
// With -push it also pushes and signs images and chart. docs/releases.md describes the files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
)

// programs are those of the images.
var programs = []string{"clusterdns", "nodecache"}

// noRegistry is the registry of images that are not pushed, RFC 6761 section 6.4.
const noRegistry = "nearside.invalid"

// release has the settings of a run.
type release struct {
	root       string // of the repository
	folder     string // of the release's files
	version    string // with "v"
	repository string // of the images, with a registry and without the program
	database   string // URL of the vulnerability database, "module", or "" for that of govulncheck
	builder    string // URI of the builder in the provenance
	key        string // cosign's; "" for the identity of the workflow
	push       bool

	commit    string
	tagged    bool   // the version's tag exists, at the commit
	toolchain string // of the builds, such as go1.26.11
	created   int64  // time of the commit, in seconds since 1970
	changes   string // the changelog's text for the version
	log       io.Writer

	tree        string   // clone of the repository with the sources of a build
	environment []string // of the programs that a build runs
}

// repositoryForm is a registry, which has a dot, a port or the name localhost, and at least one folder; without them, a container runtime
// takes a name for one of Docker Hub. deploy/image has the same form.
var repositoryForm = regexp.MustCompile(
	`^(localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9-]+(?:\.[a-z0-9-]+)*:\d+)(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+$`)

// existsNowhere returns whether the registry of a repository is in the domain invalid, RFC 6761 section 6.4.
func existsNowhere(repository string) bool {
	host, _, _ := strings.Cut(repository, "/")
	host, _, _ = strings.Cut(host, ":")
	return strings.HasSuffix("."+host, ".invalid")
}

// identityVariable is set in jobs of GitHub that may sign with the identity of their workflow.
const identityVariable = "ACTIONS_ID_TOKEN_REQUEST_URL"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	r, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "release: %v; see -help\n", err)
		return 2
	}
	r.log = stdout
	if err := r.make(ctx); err != nil {
		fmt.Fprintf(stderr, "release: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (*release, error) {
	r := &release{}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&r.root, "root", ".", "`folder` of the repository")
	f.StringVar(&r.folder, "folder", "bin/release", "`folder` for the files, which is emptied")
	f.StringVar(&r.version, "version", "", "`version`, such as v1.2.3")
	f.StringVar(&r.repository, "repository", noRegistry+"/nearside", "`name` of the images before the program: registry and folder")
	f.StringVar(&r.database, "vulndb", "", "`URL` of the vulnerability database, if not that of the Go project; module for its copy in "+databaseModule)
	f.StringVar(&r.builder, "builder", "https://github.com/nearside-dns/nearside/blob/main/docs/releases.md#make-one", "`URI` of the builder in the provenance")
	f.StringVar(&r.key, "key", "", "cosign's key, whose password is in COSIGN_PASSWORD; empty for the identity of the workflow")
	f.BoolVar(&r.push, "push", false, "push and sign images and chart; needs the tag, at a commit of origin/main")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stderr)
		f.PrintDefaults()
	}
	switch {
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case !versionForm.MatchString(r.version):
		return nil, fmt.Errorf("invalid version %q: want vMAJOR.MINOR.PATCH, optionally with -PRERELEASE", r.version)
	case !repositoryForm.MatchString(r.repository):
		return nil, fmt.Errorf("invalid repository %q: want REGISTRY/FOLDER in lower case, such as ghcr.io/nearside-dns/nearside", r.repository)
	case r.push && existsNowhere(r.repository):
		return nil, fmt.Errorf("the registry of %s exists nowhere: -push needs -repository", r.repository)
	case r.push && r.key == "" && os.Getenv(identityVariable) == "":
		return nil, errors.New("-push needs -key, or a job of GitHub with the permission id-token: write, which sets " + identityVariable)
	}
	for _, folder := range []*string{&r.root, &r.folder} {
		if *folder, err = filepath.Abs(*folder); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// make makes, checks and, if that is set, pushes the release.
func (r *release) make(ctx context.Context) error {
	steps := []struct {
		name string
		do   func(context.Context) error
	}{
		{"tree without changes", r.checkTree},
		{"entry in the changelog", r.checkChangelog},
		{"maintainers", r.checkMaintainers},
		{"toolchain", r.readToolchain},
		{"build", r.build},
		{"second build", r.rebuild},
		{"advisories", r.writeAdvisories},
		{"checksums", r.writeChecksums},
	}
	if r.push {
		steps = append(steps, struct {
			name string
			do   func(context.Context) error
		}{"push and sign", r.publish})
	}
	for _, s := range steps {
		fmt.Fprintf(r.log, "release: %s\n", s.name)
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}
