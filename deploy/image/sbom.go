package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/uuid"
	"github.com/package-url/packageurl-go"
)

// module is the module of the programs.
const module = "github.com/nearside-dns/nearside"

// roots is the module with the certificates.
const roots = "golang.org/x/crypto/x509roots/fallback"

// bill is a bill of materials: the components of an image on all of its platforms.
type bill struct {
	*cyclonedx.BOM
	components   map[string]cyclonedx.Component // by reference
	dependencies map[string][]string            // from a reference to those of its parts
}

// bill returns the bill of materials of a program's images. The modules of a program are those that the Go toolchain
// writes into it, without the dependencies between them.
func (r release) bill(p program, reference name.Tag, digest v1.Hash, images []image) (*bill, error) {
	b := &bill{BOM: cyclonedx.NewBOM(), components: map[string]cyclonedx.Component{}, dependencies: map[string][]string{}}
	whole := r.container(p, reference, digest)
	for _, i := range images {
		b.add(whole.BOMRef, r.executable(p, i))
		b.program(p, i, r.version)
	}
	if err := b.certificates(whole.BOMRef); err != nil {
		return nil, err
	}
	b.SerialNumber = uuid.NewSHA1(uuid.NameSpaceURL, []byte(whole.BOMRef)).URN()
	b.Metadata = &cyclonedx.Metadata{Timestamp: r.created.Format("2006-01-02T15:04:05Z"), Component: &whole}
	sorted := []cyclonedx.Component{}
	for _, ref := range slices.Sorted(maps.Keys(b.components)) {
		sorted = append(sorted, b.components[ref])
	}
	graph := []cyclonedx.Dependency{}
	for _, ref := range slices.Sorted(maps.Keys(b.dependencies)) {
		in := slices.Sorted(slices.Values(b.dependencies[ref]))
		graph = append(graph, cyclonedx.Dependency{Ref: ref, Dependencies: &in})
	}
	b.Components, b.Dependencies = &sorted, &graph
	return b, nil
}

// add adds a component as a part of another one.
func (b *bill) add(in string, c cyclonedx.Component) {
	b.components[c.BOMRef] = c
	b.dependencies[in] = append(b.dependencies[in], c.BOMRef)
}

// program adds the modules of a program.
func (b *bill) program(p program, i image, version string) {
	ref := executableRef(p, i)
	own := library(&debug.Module{Path: module, Version: version})
	own.Licenses = apache()
	b.add(ref, own)
	// The standard library has the name that advisories use.
	b.add(ref, library(&debug.Module{Path: "stdlib", Version: strings.TrimPrefix(i.info.GoVersion, "go")}))
	for _, m := range i.info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.add(ref, library(m))
	}
}

// certificates adds the file of certificates and the module of its source.
func (b *bill) certificates(in string) error {
	info, ok := debug.ReadBuildInfo()
	n := -1
	if ok {
		n = slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == roots })
	}
	if n < 0 {
		return fmt.Errorf("this program has no version of module %s in its build information", roots)
	}
	sum := sha256.Sum256(certificates())
	c := cyclonedx.Component{
		BOMRef: "file:/etc/ssl/certs/ca-certificates.crt",
		Type:   cyclonedx.ComponentTypeFile,
		Name:   "/etc/ssl/certs/ca-certificates.crt",
		Hashes: hashes(hex.EncodeToString(sum[:])),
	}
	b.add(in, c)
	b.add(c.BOMRef, library(info.Deps[n]))
	return nil
}

// encode writes the bill in a version of the specification that most tools read.
func (b *bill) encode(f *os.File) error {
	return cyclonedx.NewBOMEncoder(f, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(b.BOM, cyclonedx.SpecVersion1_6)
}

// container returns the component of the image, for all of its platforms.
func (r release) container(p program, reference name.Tag, digest v1.Hash) cyclonedx.Component {
	trimTag := func(name string) string { return strings.TrimSuffix(name, ":"+reference.TagStr()) }
	purl := packageurl.NewPackageURL(packageurl.TypeOCI, "", p.name, digest.String(), packageurl.Qualifiers{
		{Key: "repository_url", Value: trimTag(long(reference))},
		{Key: "tag", Value: reference.TagStr()},
	}, "").ToString()
	return cyclonedx.Component{
		BOMRef:      purl,
		Type:        cyclonedx.ComponentTypeContainer,
		Name:        trimTag(short(reference)),
		Version:     reference.TagStr(),
		Description: p.description,
		Hashes:      hashes(digest.Hex),
		Licenses:    apache(),
		PackageURL:  purl,
		ExternalReferences: &[]cyclonedx.ExternalReference{
			{Type: cyclonedx.ERTypeVCS, URL: source},
		},
	}
}

// executable returns the component of the program for one platform.
func (r release) executable(p program, i image) cyclonedx.Component {
	return cyclonedx.Component{
		BOMRef:   executableRef(p, i),
		Type:     cyclonedx.ComponentTypeApplication,
		Name:     p.name,
		Version:  r.version,
		Hashes:   hashes(i.digest),
		Licenses: apache(),
		Properties: &[]cyclonedx.Property{
			{Name: "nearside:path", Value: "/" + p.name},
			{Name: "nearside:platform", Value: i.platform.String()},
		},
	}
}

func executableRef(p program, i image) string {
	return "file:/" + p.name + "?platform=" + url.QueryEscape(i.platform.String())
}

// library returns the component of a Go module.
func library(m *debug.Module) cyclonedx.Component {
	namespace, base := "", m.Path
	if n := strings.LastIndexByte(m.Path, '/'); n >= 0 {
		namespace, base = m.Path[:n], m.Path[n+1:]
	}
	purl := packageurl.NewPackageURL(packageurl.TypeGolang, namespace, base, m.Version, nil, "").ToString()
	c := cyclonedx.Component{
		BOMRef:     purl,
		Type:       cyclonedx.ComponentTypeLibrary,
		Name:       m.Path,
		Version:    m.Version,
		PackageURL: purl,
	}
	if m.Sum != "" {
		c.Properties = &[]cyclonedx.Property{{Name: "nearside:go.sum", Value: m.Sum}}
	}
	return c
}

func hashes(sha256 string) *[]cyclonedx.Hash {
	return &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sha256}}
}

func apache() *cyclonedx.Licenses {
	return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
}
