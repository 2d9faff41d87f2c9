package dnssec

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/internal/pages"
	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

func init() { corefile.Register(pluginName, setup) }

func setup(c *caddy.Controller) error {
	config := dnsserver.GetConfig(c)
	s, err := corefile.Once(c, func(c *caddy.Controller) (*settings, error) { return parse(c, config.Root) })
	if err != nil {
		return plugin.Error(pluginName, err)
	}
	if len(s.keys) == 0 {
		log.Warningf("No key for %v: replies are not signed", s.zones)
		return nil
	}
	h := &handler{zones: s.zones, signer: newSigner(s.keys, s.capacity)}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		h.Next = next
		return h
	})
	return nil
}

// settings are the arguments and options of the directive.
type settings struct {
	root     string // the folder of relative files, "" for the working directory
	zones    []string
	keys     []*key
	capacity int
	secrets  []string // arguments of an option for keys in another place than files
}

const (
	defaultCapacity = 10_000
	// maxCapacity is the highest number of stored signatures: they take about 3 GB.
	maxCapacity = 10_000_000
)

var options = corefile.Options[*settings]{
	"key": {Min: 2, Max: -1, Form: "file and KEY...", Parse: parseKey},
	"cache_capacity": {Min: 1, Max: 1, Form: fmt.Sprintf("0-%d", maxCapacity), Parse: func(s *settings, args []string) (err error) {
		if s.capacity, err = strconv.Atoi(args[0]); err != nil || s.capacity < 0 || s.capacity > maxCapacity {
			return fmt.Errorf("%q", args[0])
		}
		return nil
	}},
}

func parseKey(s *settings, args []string) error {
	switch args[0] {
	case "file":
	case "aws_secretsmanager":
		s.secrets = args
		return nil
	default:
		return fmt.Errorf("%q", args[0])
	}
	for _, path := range args[1:] {
		if !filepath.IsAbs(path) && s.root != "" {
			path = filepath.Join(s.root, path)
		}
		k, err := readKey(path)
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		s.keys = append(s.keys, k)
	}
	return nil
}

// parse parses the directive, given the folder of relative files.
func parse(c *caddy.Controller, root string) (*settings, error) {
	here := corefile.At(c)
	s := &settings{root: root, capacity: defaultCapacity}
	s.zones = plugin.OriginsFromArgsOrServerBlock(c.RemainingArgs(), c.ServerBlockKeys)
	seen, err := options.Parse(c, s)
	if err != nil {
		return nil, err
	}
	if s.secrets != nil {
		return nil, seen["key"].Errorf("invalid key %s: want file and KEY...: nearside reads keys from files only; a program with CoreDNS's dnssec: %s", corefile.Quote(s.secrets), pages.Bundle)
	}
	for _, k := range s.keys {
		owner := plugin.Name(k.public.Hdr.Name).Normalize()
		if !slices.ContainsFunc(s.zones, plugin.Name(owner).Matches) {
			return nil, here.Errorf("invalid key %d of %s: want a key of one of the zones %v, or of a zone above", k.tag, owner, s.zones)
		}
	}
	return s, nil
}
