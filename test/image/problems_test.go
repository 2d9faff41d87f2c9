package image

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"encoding/pem"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// expectation is the expected content of an image.
type expectation struct {
	repository string
	program    string
	user       string
	capability string // the attribute of the program's file
	ports      []string
	version    string
	revision   string
	created    string // of the images
}

// dockerHub is the registry that Docker leaves out of names.
const dockerHub = "docker.io/"

// machines are the architectures of the images.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// netBindService is struct vfs_cap_data of linux/capability.h: revision 2 with the effective flag, then the permitted and
// the inheritable half of 32 capabilities, and the same for the next 32. CAP_NET_BIND_SERVICE is number 10.
const netBindService = "\x01\x00\x00\x02" + "\x00\x04\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00" + "\x00\x00\x00\x00"

const certificatesPath = "etc/ssl/certs/ca-certificates.crt"

// problems returns the errors of an archive.
func problems(a archive, want expectation) (found []string) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	name := want.repository + "/" + want.program + ":" + want.version
	if got := a.index.Annotations; got["io.containerd.image.name"] != name || got["org.opencontainers.image.ref.name"] != want.version {
		add("the index has the names %q", got)
	}
	var platforms, tags []string
	for n, i := range a.images {
		platforms = append(platforms, i.platform.OS+"/"+i.platform.Architecture)
		tags = append(tags, a.docker[n].RepoTags...)
		for _, p := range i.problems(want) {
			add("%s: %s", i.platform.Architecture, p)
		}
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		add("platforms %q", platforms)
	}
	name = strings.TrimPrefix(name, dockerHub) // as Docker writes it
	if !slices.Equal(tags, []string{name + "-amd64", name, name + "-arm64"}) {
		add("Docker's tags are %q", tags)
	}
	if got := a.list.Annotations; !maps.Equal(got, want.annotations()) {
		add("the index has the annotations %q", got)
	}
	for _, d := range a.list.Manifests {
		if d.ArtifactType != "" {
			add("%s is an artifact of type %s", d.Digest, d.ArtifactType)
		}
	}
	return found
}

// annotations are those of the index, the images and their configs.
func (e expectation) annotations() map[string]string {
	description := map[string]string{
		"clusterdns": "The DNS server of a Kubernetes cluster",
		"nodecache":  "The DNS cache of a Kubernetes node",
	}[e.program]
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title": e.program, prefix + "description": description, prefix + "licenses": "Apache-2.0",
		prefix + "source": "https://github.com/nearside-dns/nearside", prefix + "version": e.version,
		prefix + "revision": e.revision, prefix + "created": e.created,
	}
}

func (i image) problems(want expectation) (found []string) {
	c := i.config.Config
	for _, check := range []struct {
		what      string
		got, want any
	}{
		{"platform of the config", i.config.platform, i.platform},
		{"user", c.User, want.user},
		{"entry point", c.Entrypoint, []string{"/" + want.program}},
		{"arguments", c.Cmd, []string(nil)},
		{"environment", c.Env, []string(nil)},
		{"working directory", c.WorkingDir, "/"},
		{"ports", slices.Sorted(maps.Keys(c.ExposedPorts)), want.ports},
		{"labels", c.Labels, want.annotations()},
		{"annotations", i.manifest.Annotations, want.annotations()},
		{"created", i.config.Created, want.created},
		{"media type", i.manifest.MediaType, "application/vnd.oci.image.manifest.v1+json"},
		{"media type of the config", i.manifest.Config.MediaType, "application/vnd.oci.image.config.v1+json"},
		{"files", names(i.files), []string{"etc/", "etc/ssl/", "etc/ssl/certs/", certificatesPath, "tmp/", want.program}},
	} {
		if !reflect.DeepEqual(check.got, check.want) {
			found = append(found, fmt.Sprintf("%s %q, want %q", check.what, check.got, check.want))
		}
	}
	for _, h := range i.config.History {
		if h.Created != want.created {
			found = append(found, fmt.Sprintf("history of %s", h.Created))
		}
	}
	for _, l := range i.manifest.Layers {
		if l.MediaType != "application/vnd.oci.image.layer.v1.tar+gzip" {
			found = append(found, "layer of type "+l.MediaType)
		}
	}
	for _, e := range i.files {
		found = append(found, e.problems(want, i.platform.Architecture)...)
	}
	return found
}

// problems returns the errors of a file of an image.
func (e entry) problems(want expectation, architecture string) (found []string) {
	found = clocks([]entry{e})
	mode, attributes := int64(0o644), map[string]string{}
	switch {
	case e.header.Name == want.program:
		mode = 0o755
		if want.capability != "" {
			attributes["SCHILY.xattr.security.capability"] = want.capability
		}
		if err := executable(e.content, architecture); err != nil {
			found = append(found, fmt.Sprintf("%s: %v", e.header.Name, err))
		}
	case e.header.Name == certificatesPath:
		if err := certificates(e.content); err != nil {
			found = append(found, fmt.Sprintf("%s: %v", e.header.Name, err))
		}
	case e.header.Name == "tmp/":
		mode = 0o1777
	case e.header.Typeflag == tar.TypeDir:
		mode = 0o755
	}
	if e.header.Mode != mode {
		found = append(found, fmt.Sprintf("%s has mode %o, want %o", e.header.Name, e.header.Mode, mode))
	}
	if !maps.Equal(e.header.PAXRecords, attributes) {
		found = append(found, fmt.Sprintf("%s has the records %q, want %q", e.header.Name, e.header.PAXRecords, attributes))
	}
	return found
}

// executable returns an error unless the program runs on the architecture without another file.
func executable(content []byte, architecture string) error {
	f, err := elf.NewFile(bytes.NewReader(content))
	if err != nil {
		return err
	}
	if f.Machine != machines[architecture] {
		return fmt.Errorf("is for %v, not %s", f.Machine, architecture)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("is not static: it has %v", p.Type)
		}
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return err
	}
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs") {
			return fmt.Errorf("says %s of the tree that it was built in", s.Key)
		}
	}
	return nil
}

// certificates returns an error unless the text has certificates of authorities, all of them readable.
func certificates(text []byte) error {
	n := 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		if !c.IsCA {
			return fmt.Errorf("%s is no authority", c.Subject)
		}
		n++
	}
	if n < 50 || bytes.Count(text, []byte("-----BEGIN ")) != n {
		return fmt.Errorf("%d of %d certificates could be read", n, bytes.Count(text, []byte("-----BEGIN ")))
	}
	return nil
}

func names(files []entry) (all []string) {
	for _, f := range files {
		all = append(all, f.header.Name)
	}
	return all
}
