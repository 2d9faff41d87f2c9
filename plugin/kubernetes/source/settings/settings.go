// Package settings has the options of a directive that select the source of its records: an API server, or a directory of
// manifests. Input is the options; output is a source.Source. It opens no connection, and imports no plugin.
package settings

import (
	"fmt"
	"strconv"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/manifests"
)

var log = clog.NewWithPlugin("kubernetes")

// Settings select a source.
type Settings struct {
	// Connection is the connection to the API server, by default to that of the cluster in which the process runs.
	Connection apiserver.Connection
	// Manifests is the directory of manifests; "" selects the API server.
	Manifests string

	at corefile.Position // of the option that selects the source, for errors of Open
}

// Options parse the options of a directive into its Settings.
var Options = corefile.Options[*Settings]{
	"endpoint":               {Min: 1, Max: -1, Form: "the URL of an API server, such as https://10.0.0.1:6443", Parse: parseEndpoint},
	"tls":                    {Min: 3, Max: 3, Form: "three files: CERT KEY CACERT", Parse: parseTLS},
	"kubeconfig":             {Min: 1, Max: 2, Form: "a file and optionally a context: FILE [CONTEXT]", Parse: parseKubeconfig},
	"apiserver_qps":          {Min: 1, Max: 1, Form: "a number of requests a second, 0 or more", Parse: parseQPS},
	"apiserver_burst":        {Min: 1, Max: 1, Form: "a number of requests, 0 or more", Parse: parseBurst},
	"apiserver_max_inflight": {Min: 1, Max: 1, Form: "a number of requests, 0 or more", Parse: parseMaxInflight},
	"manifests":              {Min: 1, Max: 1, Form: "a directory", Parse: func(s *Settings, args []string) error { s.Manifests = args[0]; return nil }},
}

// Check returns an error if the options contradict each other, or if the files of tls cannot be used. It is called when all
// options have been parsed, with the position of the directive and those of its options.
func (s *Settings) Check(start corefile.Position, seen map[string]corefile.Position) error {
	for _, other := range []string{"endpoint", "kubeconfig", "tls", "apiserver_qps", "apiserver_burst", "apiserver_max_inflight"} {
		if err := corefile.Conflict(seen, "manifests", other, "records are read from a directory or from an API server"); err != nil {
			return err
		}
	}
	s.at = start
	for _, name := range []string{"endpoint", "kubeconfig", "manifests"} {
		if here, ok := seen[name]; ok {
			s.at = here
		}
	}
	if here, ok := seen["tls"]; ok && s.Connection.Endpoint != "" && s.Connection.Kubeconfig == "" { // otherwise not used
		if _, err := s.Connection.RESTConfig(); err != nil {
			return Options.Invalid("tls", here, fmt.Errorf("%s: %w", corefile.Quote([]string{s.Connection.Cert, s.Connection.Key, s.Connection.CA}), err))
		}
	}
	return nil
}

// Open returns the source. It reads a directory of manifests, so that an invalid file is a configuration error.
func (s *Settings) Open(o source.Options) (source.Source, error) {
	if s.Manifests != "" {
		src, err := manifests.New(s.Manifests, o)
		if err != nil {
			return nil, s.at.Errorf("manifests: %w", err)
		}
		return src, nil
	}
	src, err := apiserver.New(s.Connection, o)
	if err != nil {
		return nil, s.at.Errorf("%w", err)
	}
	return src, nil
}

// Identity is equal for settings that select the same source.
func (s *Settings) Identity() string { return s.Manifests + "|" + s.Connection.Identity() }

func parseEndpoint(s *Settings, args []string) error {
	u, _, err := rest.DefaultServerURL(args[0], "", schema.GroupVersion{}, false)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q", args[0])
	}
	if len(args) > 1 {
		log.Warningf("endpoint: only the first of %q is used", args)
	}
	s.Connection.Endpoint = args[0]
	return nil
}

func parseTLS(s *Settings, args []string) error {
	s.Connection.Cert, s.Connection.Key, s.Connection.CA = args[0], args[1], args[2]
	return nil // Check reads the files
}

func parseKubeconfig(s *Settings, args []string) error {
	s.Connection.Kubeconfig = args[0]
	if len(args) == 2 {
		s.Connection.Context = args[1]
	}
	if _, err := s.Connection.RESTConfig(); err != nil {
		return fmt.Errorf("%q: %w", args[0], err)
	}
	return nil
}

func parseQPS(s *Settings, args []string) error {
	qps, err := strconv.ParseFloat(args[0], 32)
	if err != nil || !(qps >= 0) {
		return fmt.Errorf("%q", args[0])
	}
	s.Connection.QPS = float32(qps)
	return nil
}

func parseBurst(s *Settings, args []string) (err error) {
	s.Connection.Burst, err = count(args[0])
	return err
}

func parseMaxInflight(s *Settings, args []string) (err error) {
	s.Connection.MaxInflight, err = count(args[0])
	return err
}

func count(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q", arg)
	}
	return n, nil
}
