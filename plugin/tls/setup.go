// Package tls is the directive that sets the certificate of listeners for DNS over TLS, HTTPS, QUIC and gRPC. It handles no
// queries. Input: files; output: dnsserver.Config.TLSConfig.
package tls

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	pkgtls "github.com/coredns/coredns/plugin/pkg/tls"

	"github.com/nearside-dns/nearside/internal/pages"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

const pluginName = "tls"

var log = clog.NewWithPlugin(pluginName)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	config := dnsserver.GetConfig(c)
	settings, err := corefile.Once(c, func(c *caddy.Controller) (*settings, error) { return parse(c, config.Root) })
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	if config.TLSConfig, err = settings.load(); err != nil {
		return plugin.Error(pluginName, err)
	}
	if settings.keyLog == "" {
		return nil
	}
	// The keys of connections are written until the server ends; a refused configuration writes none.
	keys := &keyLog{path: settings.keyLog}
	config.TLSConfig.KeyLogWriter = keys
	c.OnStartup(keys.open)
	c.OnShutdown(keys.close)
	return nil
}

// settings are the arguments and options of the directive. Files are relative to the folder of directive root.
type settings struct {
	files      []string // certificate, key and perhaps the certificates of authorities
	clientAuth tls.ClientAuthType
	keyLog     string
}

// clientAuths are the values of client_auth.
var clientAuths = map[string]tls.ClientAuthType{
	"nocert":             tls.NoClientCert,
	"request":            tls.RequestClientCert,
	"require":            tls.RequireAnyClientCert,
	"verify_if_given":    tls.VerifyClientCertIfGiven,
	"require_and_verify": tls.RequireAndVerifyClientCert,
}

var options = corefile.Options[*settings]{
	"client_auth": {Min: 1, Max: 1, Once: true, Form: "nocert, request, require, verify_if_given or require_and_verify", Parse: func(s *settings, args []string) error {
		auth, ok := clientAuths[args[0]]
		if !ok {
			return fmt.Errorf("%q", args[0])
		}
		s.clientAuth = auth
		return nil
	}},
	"keylog": {Min: 1, Max: 1, Once: true, Form: "a file", Parse: func(s *settings, args []string) error {
		s.keyLog = args[0]
		return nil
	}},
}

// errACME is the error of another number of arguments: CoreDNS's tls has a form that requests certificates from an authority.
var errACME = errors.New("want a certificate and a key, and perhaps the certificates of authorities: nearside requests no certificates (ACME); a program with CoreDNS's tls: " + pages.Bundle)

// parse parses the directive, given the folder of relative files, "" for the working directory.
func parse(c *caddy.Controller, root string) (*settings, error) {
	here := corefile.At(c)
	s := &settings{files: c.RemainingArgs()}
	if n := len(s.files); n != 2 && n != 3 {
		return nil, here.Errorf("invalid %s: %w", strings.TrimSpace(pluginName+" "+corefile.Quote(s.files)), errACME)
	}
	if _, err := options.Parse(c, s); err != nil {
		return nil, err
	}
	within := func(path string) string {
		if path == "" || filepath.IsAbs(path) || root == "" {
			return path
		}
		return filepath.Join(root, path)
	}
	for i := range s.files {
		s.files[i] = within(s.files[i])
	}
	s.keyLog = within(s.keyLog)
	return s, nil
}

// load reads the files.
func (s *settings) load() (*tls.Config, error) {
	config, err := pkgtls.NewTLSConfigFromArgs(s.files...)
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = s.clientAuth, config.RootCAs
	return config, nil
}

// keyLog is the file of option keylog.
type keyLog struct {
	path string
	io.WriteCloser
}

func (k *keyLog) open() error {
	file, err := os.OpenFile(k.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return plugin.Error(pluginName, fmt.Errorf("keylog: %w", err))
	}
	k.WriteCloser = file
	log.Warningf("The keys of all connections are written to %s: a reader of the file can decrypt them", k.path)
	return nil
}

func (k *keyLog) close() error {
	if k.WriteCloser == nil {
		return nil
	}
	return k.Close()
}
