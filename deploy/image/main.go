// Command image builds container images of the programs, without a container engine. Input is the folders
// linux-amd64 and linux-arm64 with the built programs; output is, for each program, an archive for container runtimes and
// a bill of materials. The machine and the time have no effect: the same programs and flags give the same bytes. It may
// not import the programs.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// release has the settings of all images of a run.
type release struct {
	folder     string    // of the programs and of the output
	repository string    // the part of the image's name before that of the program
	version    string    // of the programs, and the tag
	revision   string    // the commit, or ""
	created    time.Time // the creation time in the images

	certificates bool   // print the certificates of the images, and build none
	push         string // path of an archive to push; no image is built
	digest       string // of its image
	tag          bool   // push the image with the tag, not only by its digest
}

// repositoryForm is a registry, which has a dot, a port or the name localhost, and at least one folder; without them, a container runtime
// takes a name for one of Docker Hub. deploy/release has the same form.
var repositoryForm = regexp.MustCompile(
	`^(localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9-]+(?:\.[a-z0-9-]+)*:\d+)(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)+$`)

// existsNowhere returns whether the registry of a repository is in the domain invalid, RFC 6761 section 6.4.
func existsNowhere(repository string) bool {
	host, _, _ := strings.Cut(repository, "/")
	host, _, _ = strings.Cut(host, ":")
	return strings.HasSuffix("."+host, ".invalid")
}

func main() {
	os.Exit(run(os.Args[1:]))
}

// run returns the exit code.
func run(args []string) int {
	r, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "image: %v; see -help\n", err)
		return 2
	}
	switch {
	case r.certificates:
		_, err = os.Stdout.Write(certificates())
	case r.push != "":
		err = r.pushArchive(r.push)
	default:
		err = r.make()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		return 1
	}
	return 0
}

func parse(args []string) (release, error) {
	var r release
	var seconds int64
	f := flag.NewFlagSet("image", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&r.folder, "folder", "", "`folder` that has linux-amd64 and linux-arm64, and gets the archives")
	f.StringVar(&r.repository, "repository", "nearside.invalid/nearside", "`name` of the images before the program: registry and folder")
	f.StringVar(&r.version, "version", "", "`version` of the programs, which becomes the tag")
	f.StringVar(&r.revision, "revision", "", "`commit` that the programs were built from")
	f.Int64Var(&seconds, "created", 0, "time of the images, in `seconds` since 1970")
	f.BoolVar(&r.certificates, "certificates", false, "print the certificates that images have, and make none")
	f.StringVar(&r.push, "push", "", "push the image of an `archive` that was made before, without a tag, and make none")
	f.StringVar(&r.digest, "digest", "", "`digest` of the image to push; another one is an error")
	f.BoolVar(&r.tag, "tag", false, "push with the tag")
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(os.Stderr)
		f.PrintDefaults()
	}
	if err != nil {
		return r, err
	}
	r.created = time.Unix(seconds, 0).UTC()
	switch {
	case f.NArg() > 0:
		return r, fmt.Errorf("unexpected argument %q", f.Arg(0))
	case r.certificates:
		return r, nil
	case r.folder == "" && r.push == "":
		return r, errors.New("flag -folder is missing")
	case r.version == "":
		return r, errors.New("flag -version is missing")
	case !repositoryForm.MatchString(r.repository):
		return r, fmt.Errorf("invalid repository %q: want REGISTRY/FOLDER in lower case, such as ghcr.io/nearside-dns/nearside", r.repository)
	case r.push != "" && existsNowhere(r.repository):
		return r, fmt.Errorf("the registry of %s exists nowhere: -push needs -repository", r.repository)
	case r.push != "" && r.digest == "":
		return r, errors.New("flag -digest is missing")
	}
	for _, p := range programs {
		if _, err := r.reference(p); err != nil {
			return r, err
		}
	}
	return r, nil
}

// reference returns the name of a program's image.
func (r release) reference(p program) (name.Tag, error) {
	reference, err := name.NewTag(r.repository + "/" + p.name + ":" + r.version)
	if err != nil {
		return reference, fmt.Errorf("flags -repository and -version do not form a valid image name: %w", err)
	}
	return reference, nil
}

// make builds all images.
func (r release) make() error {
	for _, p := range programs {
		if err := r.makeOne(p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// makeOne writes the archive and the bill of materials of a program.
func (r release) makeOne(p program) error {
	reference, err := r.reference(p)
	if err != nil {
		return err
	}
	images, err := r.images(p)
	if err != nil {
		return err
	}
	index := r.index(p, images)
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	bill, err := r.bill(p, reference, digest, images)
	if err != nil {
		return fmt.Errorf("bill of materials: %w", err)
	}
	path := filepath.Join(r.folder, p.name)
	if err := write(path+".tar", func(f *os.File) error { return archive(f, reference, index, images) }); err != nil {
		return err
	}
	if err := write(path+".sbom.json", bill.encode); err != nil {
		return err
	}
	fmt.Printf("%s.tar: %s %s\n", path, short(reference), digest)
	return nil
}

// write replaces a file by rename, so that readers never see a part of it.
func write(path string, content func(*os.File) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(content(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// long returns a name with its registry: docker.io for Docker Hub, which this library calls by another name.
func long(reference name.Tag) string {
	return strings.Replace(reference.Name(), name.DefaultRegistry+"/", "docker.io/", 1)
}

// short returns a name without the registry of Docker Hub.
func short(reference name.Tag) string {
	return strings.TrimPrefix(reference.Name(), name.DefaultRegistry+"/")
}
