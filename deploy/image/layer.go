package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/pem"
	"io"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// file is a file of a layer, or a folder if its name ends in a slash. Files belong to root and have no time, so the same
// content gives the same layer.
type file struct {
	name    string
	mode    int64
	content []byte
	records map[string]string // PAX
}

// baseLayer returns the files that both programs need: the root certificates for DNS over TLS, HTTPS and QUIC, and a
// folder for files that flags such as -pidfile create.
func baseLayer() (v1.Layer, error) {
	return layer([]file{
		{name: "etc/", mode: 0o755},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: certificates()},
		{name: "tmp/", mode: 0o1777},
	})
}

// certificates returns Mozilla's root certificates, in PEM, without those that Mozilla trusts only until some date: a file
// can't express that.
func certificates() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			text.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return text.Bytes()
}

// file returns the file of the program.
func (p program) file(content []byte) file {
	f := file{name: p.name, mode: 0o755, content: content}
	if p.bind {
		f.records = map[string]string{"SCHILY.xattr.security.capability": bindCapability()}
	}
	return f
}

// bindCapability returns the attribute of a file whose process gets CAP_NET_BIND_SERVICE without being root, if its
// container permits it: Kubernetes sets no ambient capabilities, so such a process has only the capabilities of its file.
// It is the kernel's struct vfs_cap_data, revision 2, with the effective flag.
func bindCapability() string {
	const (
		revision2      = 0x02000000
		effective      = 0x000001
		netBindService = 10
	)
	var words []byte
	for _, w := range []uint32{revision2 | effective, 1 << netBindService, 0, 0, 0} { // permitted, inheritable: low, then high
		words = binary.LittleEndian.AppendUint32(words, w)
	}
	return string(words)
}

// layer returns a layer with the files.
func layer(files []file) (v1.Layer, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, f := range files {
		if err := f.write(w); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer),
		tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

func (f file) write(w *tar.Writer) error {
	header := &tar.Header{
		Typeflag:   tar.TypeReg,
		Name:       f.name,
		Mode:       f.mode,
		Size:       int64(len(f.content)),
		ModTime:    time.Unix(0, 0),
		PAXRecords: f.records,
		Format:     tar.FormatPAX,
	}
	if f.name[len(f.name)-1] == '/' {
		header.Typeflag = tar.TypeDir
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err := w.Write(f.content)
	return err
}
