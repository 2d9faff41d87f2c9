package image

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// canFail asserts that each of the checks above can fail, with copies of the images that have one change.
func canFail(t *testing.T, made string, entries []entry, want expectation) {
	if want.program == expectations[0].program { // the checks of an archive depend on no program, and read all of it each time
		t.Run("archive", func(t *testing.T) { archiveCanFail(t, entries) })
	}
	t.Run("image", func(t *testing.T) { imageCanFail(t, entries, want) })
	t.Run("bill of materials", func(t *testing.T) {
		text := kit.Read(t, filepath.Join(made, want.program+".sbom.json"))
		a, err := openArchive(entries)
		kit.Must(t, err)
		billCanFail(t, text, a, want)
	})
}

// change replaces the first old text of the entry whose name has this prefix.
func change(t *testing.T, entries []entry, name, old, replacement string) []entry {
	t.Helper()
	changed := slices.Clone(entries)
	for n, e := range changed {
		if strings.HasPrefix(e.header.Name, name) && strings.Contains(string(e.content), old) {
			changed[n].content = []byte(strings.Replace(string(e.content), old, replacement, 1))
			return changed
		}
	}
	t.Fatalf("no %s has %q", name, old)
	return nil
}

func archiveCanFail(t *testing.T, entries []entry) {
	without := func(name string) []entry {
		return slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.header.Name == name })
	}
	largest := slices.MaxFunc(entries, func(a, b entry) int { return len(a.content) - len(b.content) }).header.Name
	stray := entry{content: []byte("stray")}
	stray.header.Typeflag, stray.header.Name = '0', blobPath(digest(stray.content))
	for _, tc := range []struct {
		name    string
		entries []entry
		want    string
	}{
		{"no layout", without("oci-layout"), "oci-layout"},
		{"no index", without("index.json"), "index.json: "},
		{"no list of Docker's", without("manifest.json"), "manifest.json: "},
		{"no layer", without(largest), largest + " is missing"},
		{"another architecture in a blob", change(t, entries, "blobs/", `"architecture":"arm64"`, `"architecture":"arm65"`), "has sha256:"},
		{"another size in the index", change(t, entries, "index.json", `"size": `, `"size": 1`), " bytes has "},
		{"blob that nothing refers to", append(slices.Clone(entries), stray), "nothing refers to blobs/"},
		{"Docker's list of other blobs", change(t, entries, "manifest.json", `"Config":"blobs`, `"Config":"blob`), "manifest.json has "},
		{"Docker's list is short", change(t, entries, "manifest.json", `},{`, `}]    `), "manifest.json: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := openArchive(tc.entries); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	late := slices.Clone(entries)
	late[0].header.ModTime = time.Unix(1, 0)
	late[1].header.Uname = "root"
	late[2], late[3] = late[3], late[2]
	got := clocks(late)
	if len(got) != 3 || !strings.HasSuffix(got[0], " has a time") || !strings.HasSuffix(got[1], " has an owner") || !strings.HasSuffix(got[2], " is out of order") {
		t.Errorf("clocks: %q", got)
	}
}

func imageCanFail(t *testing.T, entries []entry, want expectation) {
	whole, err := openArchive(entries)
	kit.Must(t, err)
	file := func(a *archive, name string) *entry {
		for n, e := range a.images[1].files {
			if e.header.Name == name {
				return &a.images[1].files[n]
			}
		}
		t.Fatalf("no file %s", name)
		return nil
	}
	for _, tc := range []struct {
		name   string
		change func(*archive)
		want   string
	}{
		{"platform is missing", func(a *archive) { a.images, a.docker = a.images[:1], a.docker[:1] }, `platforms ["linux/amd64"]`},
		{"name", func(a *archive) { a.index.Annotations["io.containerd.image.name"] = "x" }, "the index has the names "},
		{"annotation of the index", func(a *archive) { delete(a.list.Annotations, "org.opencontainers.image.licenses") }, "the index has the annotations "},
		{"artifact", func(a *archive) { a.list.Manifests[0].ArtifactType = "x" }, "is an artifact of type x"},
		{"tag", func(a *archive) { a.docker[1].RepoTags = a.docker[0].RepoTags }, "Docker's tags are "},
		{"architecture", func(a *archive) { a.images[1].config.Architecture = "amd64" }, "arm64: platform of the config "},
		{"user", func(a *archive) { a.images[1].config.Config.User = "" }, `arm64: user ""`},
		{"entry point", func(a *archive) { a.images[1].config.Config.Entrypoint = []string{"/x"} }, `arm64: entry point ["/x"]`},
		{"environment", func(a *archive) { a.images[1].config.Config.Env = []string{"HOME=/root"} }, "arm64: environment "},
		{"port", func(a *archive) { delete(a.images[1].config.Config.ExposedPorts, "53/udp") }, "arm64: ports "},
		{"label", func(a *archive) { delete(a.images[1].config.Config.Labels, "org.opencontainers.image.source") }, "arm64: labels "},
		{"time of the image", func(a *archive) { a.images[1].config.Created = "2023-11-14T22:13:21Z" }, "arm64: created "},
		{"time of the history", func(a *archive) { a.images[1].config.History[0].Created = "" }, "arm64: history of "},
		{"media type of a layer", func(a *archive) { a.images[1].manifest.Layers[0].MediaType = "x" }, "arm64: layer of type x"},
		{"more files", func(a *archive) { a.images[1].files = append(a.images[1].files, entry{}) }, "arm64: files "},
		{"time of a file", func(a *archive) { file(a, "tmp/").header.ModTime = time.Unix(1, 0) }, "arm64: tmp/ has a time"},
		{"mode of a file", func(a *archive) { file(a, want.program).header.Mode = 0o644 }, want.program + " has mode 644"},
		{"capability", func(a *archive) {
			file(a, want.program).header.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01"}
		}, want.program + " has the records "},
		{"program of another machine", func(a *archive) { file(a, want.program).content = whole.images[0].files[5].content }, want.program + ": is for EM_X86_64"},
		{"no program", func(a *archive) { file(a, want.program).content = []byte("#!/bin/sh\n" + strings.Repeat("#", 100)) }, want.program + ": bad magic number"},
		{"few certificates", func(a *archive) { e := file(a, certificatesPath); e.content = e.content[:4000] }, "certificates could be read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := copied(whole)
			tc.change(&a)
			if got := problems(a, want); !slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, tc.want) }) {
				t.Errorf("problems %q, want %q", got, tc.want)
			}
		})
	}
}

// copied returns a copy of the parts that the cases above change; contents are shared.
func copied(a archive) archive {
	a.index.Annotations, a.list.Annotations = maps.Clone(a.index.Annotations), maps.Clone(a.list.Annotations)
	a.list.Manifests, a.docker, a.images = slices.Clone(a.list.Manifests), slices.Clone(a.docker), slices.Clone(a.images)
	for n := range a.images {
		i := &a.images[n]
		i.files, i.config.History, i.manifest.Layers = slices.Clone(i.files), slices.Clone(i.config.History), slices.Clone(i.manifest.Layers)
		i.config.Config.Labels, i.config.Config.ExposedPorts = maps.Clone(i.config.Config.Labels), maps.Clone(i.config.Config.ExposedPorts)
	}
	return a
}

func billCanFail(t *testing.T, text string, a archive, want expectation) {
	module := certificatesModule(t)
	if !strings.Contains(text, module) {
		t.Fatalf("the bill does not name %s", module)
	}
	other := copied(a)
	other.images[0].files[5].content = a.images[1].files[5].content
	for _, tc := range []struct {
		name    string
		text    string
		archive archive
		want    string
	}{
		{"no bill", "", a, "unexpected end of JSON"},
		{"version of the format", strings.Replace(text, `"specVersion": "1.6"`, `"specVersion": "1.3"`, 1), a, "format CycloneDX 1.3"},
		{"time", strings.Replace(text, created, "2023-11-14T22:13:21Z", 1), a, "time 2023-11-14T22:13:21Z"},
		{"image", strings.Replace(text, a.index.Digest[len("sha256:"):]+`"`, `00"`, 1), a, "it is for "},
		{"registry of the image", strings.Replace(text, `"purl": "pkg:oci/`, `"purl": "pkg:docker/`, 1), a, "it is pkg:docker/"},
		{"module of another version", strings.ReplaceAll(text, "github.com/miekg/dns@v1", "github.com/miekg/dns@v2"), a, "amd64: the program has "},
		{"module that is not there", strings.Replace(text, `"pkg:golang/github.com/miekg/dns@`, `"pkg:golang/github.com/miekg/dnx@`, 1), a, "is not listed"},
		{"name of a module", strings.Replace(text, `"name": "github.com/miekg/dns"`, `"name": "github.com/miekg/dnx"`, 1), a, " is github.com/miekg/dnx "},
		{"another program", text, other, "amd64: the program is "},
		{"platform", strings.Replace(text, `"value": "linux/arm64"`, `"value": "linux/arm"`, 1), a, "no program for arm64"},
		{"certificates", strings.ReplaceAll(text, module, module+"1"), a, certificatesPath + " was made from "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.text == text && tc.name != "another program" {
				t.Fatal("nothing was changed")
			}
			if got := billProblems([]byte(tc.text), tc.archive, want, module); !slices.ContainsFunc(got, func(p string) bool { return strings.Contains(p, tc.want) }) {
				t.Errorf("problems %q, want %q", got, tc.want)
			}
		})
	}
}
