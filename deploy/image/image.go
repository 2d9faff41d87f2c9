package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// program is a program with an image.
type program struct {
	name        string
	description string
	user        string   // user of the process
	bind        bool     // it may bind ports below 1024 without being root
	ports       []string // default ports of the server
}

// programs are those with images. nodecache runs as root, which interface, rules and the lock of iptables need; its
// manifest drops all capabilities that it does not use.
var programs = []program{
	{
		name:        "clusterdns",
		description: "The DNS server of a Kubernetes cluster",
		user:        "65532:65532",
		bind:        true,
		ports:       []string{"53/tcp", "53/udp", "9153/tcp"},
	},
	{
		name:        "nodecache",
		description: "The DNS cache of a Kubernetes node",
		user:        "0:0",
		ports:       []string{"53/tcp", "53/udp", "9253/tcp"},
	},
}

// architectures of the images. In Docker's list, the first one has the tag without an architecture.
var architectures = []string{"amd64", "arm64"}

const source = "https://github.com/nearside-dns/nearside"

// image is the image of a program for one platform.
type image struct {
	v1.Image
	platform v1.Platform
	info     *buildinfo.BuildInfo // of the program
	digest   string               // of the program, SHA-256
}

// ArtifactType is empty, so that the index lists an image and not an artifact.
func (image) ArtifactType() (string, error) { return "", nil }

// images returns a program's image for each platform.
func (r release) images(p program) ([]image, error) {
	base, err := baseLayer()
	if err != nil {
		return nil, err
	}
	var all []image
	for _, architecture := range architectures {
		path := filepath.Join(r.folder, "linux-"+architecture, p.name)
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := static(info, architecture); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		own, err := layer([]file{p.file(content)})
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(content)
		i := image{platform: v1.Platform{OS: "linux", Architecture: architecture}, info: info, digest: hex.EncodeToString(sum[:])}
		i.Image, err = r.image(p, i.platform, base, own)
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	return all, nil
}

// static returns an error if a program needs more than the image has, or is for another machine.
func static(info *buildinfo.BuildInfo, architecture string) error {
	want := map[string]string{"GOOS": "linux", "GOARCH": architecture, "CGO_ENABLED": "0", "-trimpath": "true"}
	for _, s := range info.Settings {
		if w, asked := want[s.Key]; asked && s.Value == w {
			delete(want, s.Key)
		}
	}
	if len(want) > 0 {
		return fmt.Errorf("the program was not built with %v", want)
	}
	return nil
}

func (r release) image(p program, platform v1.Platform, base, own v1.Layer) (v1.Image, error) {
	config := &v1.ConfigFile{
		OS:           platform.OS,
		Architecture: platform.Architecture,
		Created:      v1.Time{Time: r.created},
		Config: v1.Config{
			Entrypoint:   []string{"/" + p.name},
			User:         p.user,
			WorkingDir:   "/",
			ExposedPorts: map[string]struct{}{},
			Labels:       r.annotations(p),
		},
		RootFS: v1.RootFS{Type: "layers"},
	}
	for _, port := range p.ports {
		config.Config.ExposedPorts[port] = struct{}{}
	}
	blank := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	configured, err := mutate.ConfigFile(blank, config)
	if err != nil {
		return nil, err
	}
	whole, err := mutate.Append(configured,
		mutate.Addendum{Layer: base, History: r.history("certificates and /tmp")},
		mutate.Addendum{Layer: own, History: r.history(p.name)})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(whole, r.annotations(p)).(v1.Image), nil
}

func (r release) history(what string) v1.History {
	return v1.History{Created: v1.Time{Time: r.created}, CreatedBy: "nearside deploy/image", Comment: what}
}

// index returns the index of a program's images.
func (r release) index(p program, images []image) v1.ImageIndex {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: &i.platform}})
	}
	return mutate.Annotations(index, r.annotations(p)).(v1.ImageIndex)
}

// annotations are those of the OCI image specification.
func (r release) annotations(p program) map[string]string {
	const prefix = "org.opencontainers.image."
	all := map[string]string{
		prefix + "title":       p.name,
		prefix + "description": p.description,
		prefix + "licenses":    "Apache-2.0",
		prefix + "source":      source,
		prefix + "version":     r.version,
		prefix + "created":     r.created.Format("2006-01-02T15:04:05Z"),
	}
	if r.revision != "" {
		all[prefix+"revision"] = r.revision
	}
	return all
}
