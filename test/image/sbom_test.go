package image

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// billOfMaterials has the fields of a CycloneDX document that are read here.
type billOfMaterials struct {
	BOMFormat    string
	SpecVersion  string
	SerialNumber string
	Metadata     struct {
		Timestamp string
		Component component
	}
	Components   []component
	Dependencies []struct {
		Ref       string
		DependsOn []string
	}
}

type component struct {
	BOMRef     string `json:"bom-ref"`
	Type       string
	Name       string
	Version    string
	PURL       string
	Hashes     []struct{ Alg, Content string }
	Properties []struct{ Name, Value string }
}

// sha256 returns the component's digest as descriptors have it.
func (c component) sha256() string {
	for _, h := range c.Hashes {
		if h.Alg == "SHA-256" {
			return "sha256:" + h.Content
		}
	}
	return ""
}

func (c component) property(name string) string {
	for _, p := range c.Properties {
		if p.Name == name {
			return p.Value
		}
	}
	return ""
}

// golang returns the package URL of a module.
func golang(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// billProblems returns the differences of a bill of materials from its archive.
// Only the module of the certificates is not in the archive.
func billProblems(text []byte, a archive, want expectation, certificatesModule string) (found []string) {
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	var b billOfMaterials
	if err := json.Unmarshal(text, &b); err != nil {
		return []string{err.Error()}
	}
	if b.BOMFormat != "CycloneDX" || b.SpecVersion != "1.6" || !strings.HasPrefix(b.SerialNumber, "urn:uuid:") {
		add("format %s %s %s", b.BOMFormat, b.SpecVersion, b.SerialNumber)
	}
	if b.Metadata.Timestamp != want.created {
		add("time %s, want %s", b.Metadata.Timestamp, want.created)
	}
	whole := b.Metadata.Component
	if whole.sha256() != a.index.Digest || whole.Type != "container" || whole.Name != strings.TrimPrefix(want.repository, dockerHub)+"/"+want.program || whole.Version != want.version {
		add("it is for %+v, the archive has %s", whole, a.index.Digest)
	}
	repository := url.QueryEscape(want.repository + "/" + want.program)
	if purl := "pkg:oci/" + want.program + "@" + a.index.Digest + "?repository_url=" + repository + "&tag=" + want.version; whole.PURL != purl {
		add("it is %s, want %s", whole.PURL, purl)
	}
	in := map[string][]string{}
	for _, d := range b.Dependencies {
		in[d.Ref] = d.DependsOn
	}
	byRef := map[string]component{whole.BOMRef: whole}
	for _, c := range b.Components {
		if _, twice := byRef[c.BOMRef]; twice {
			add("%s is listed twice", c.BOMRef)
		}
		byRef[c.BOMRef] = c
	}
	var parts []string // of the image
	for _, i := range a.images {
		ref, p := i.programProblems(b, in, want)
		parts = append(parts, ref)
		found = append(found, p...)
	}
	authorities := "file:/" + certificatesPath
	if got := byRef[authorities].sha256(); got != digest(authorityFile(a).content) {
		add("%s has %s", authorities, got)
	}
	if !slices.Equal(in[authorities], []string{certificatesModule}) {
		add("%s was made from %q, want %s", authorities, in[authorities], certificatesModule)
	}
	parts = append(parts, authorities)
	slices.Sort(parts)
	if !slices.Equal(in[whole.BOMRef], parts) {
		add("in the image are %q, want %q", in[whole.BOMRef], parts)
	}
	return append(found, dangling(byRef, in, whole.BOMRef)...)
}

// authorityFile returns the file of certificates, which all images share.
func authorityFile(a archive) entry {
	for _, e := range a.images[0].files {
		if e.header.Name == certificatesPath {
			return e
		}
	}
	return entry{}
}

// programProblems compares a bill's entry for the program of a platform with the program's own build information. It
// returns the program's reference.
func (i image) programProblems(b billOfMaterials, in map[string][]string, want expectation) (ref string, found []string) {
	file := i.files[len(i.files)-1]
	at := slices.IndexFunc(b.Components, func(c component) bool {
		return c.Type == "application" && c.property("nearside:platform") == i.platform.OS+"/"+i.platform.Architecture
	})
	if at < 0 {
		return "", []string{"no program for " + i.platform.Architecture}
	}
	c := b.Components[at]
	if c.sha256() != digest(file.content) || c.Name != want.program || c.Version != want.version || c.property("nearside:path") != "/"+want.program {
		found = append(found, fmt.Sprintf("%s: the program is %s, the bill has %+v", i.platform.Architecture, digest(file.content), c))
	}
	info, err := buildinfo.Read(bytes.NewReader(file.content))
	if err != nil {
		return c.BOMRef, append(found, err.Error())
	}
	modules := []string{
		golang("github.com/nearside-dns/nearside", want.version),
		golang("stdlib", strings.TrimPrefix(info.GoVersion, "go")),
	}
	for _, m := range info.Deps {
		modules = append(modules, golang(m.Path, m.Version))
	}
	slices.Sort(modules)
	if got := in[c.BOMRef]; !slices.Equal(got, modules) {
		found = append(found, fmt.Sprintf("%s: the program has %q, the bill %q", i.platform.Architecture, modules, got))
	}
	return c.BOMRef, found
}

// dangling returns references without a target, and components without a reference.
func dangling(byRef map[string]component, in map[string][]string, whole string) (found []string) {
	reached := map[string]bool{whole: true}
	for ref, all := range in {
		for _, d := range append([]string{ref}, all...) {
			if _, there := byRef[d]; !there {
				found = append(found, d+" is not listed")
			}
		}
		for _, d := range all {
			reached[d] = true
		}
	}
	for ref, c := range byRef {
		if !reached[ref] {
			found = append(found, ref+" is in nothing")
		}
		if c.Type == "library" && (c.PURL != ref || c.PURL != golang(c.Name, c.Version)) {
			found = append(found, fmt.Sprintf("%s is %s %s", c.PURL, c.Name, c.Version))
		}
	}
	slices.Sort(found)
	return found
}
