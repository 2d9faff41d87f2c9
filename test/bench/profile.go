package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// profileSeconds is the length of a CPU profile.
const profileSeconds = 5

// profiled sets a server's port for profiles, if they are wanted, and returns the lines for its Corefile. It is for our
// programs only.
func (b *bench) profiled(s *server) string {
	if b.profile == "" || s.name == nameCoreDNS || s.name == nameClusterCoreDNS {
		return ""
	}
	s.pprof = child.FreePort()
	return fmt.Sprintf("\n    pprof 127.0.0.1:%d%s", s.pprof, b.pprofOptions)
}

// profileAll writes a CPU profile of each server and kind of question.
func (b *bench) profileAll(ctx context.Context, servers []*server, loads []*load) error {
	for _, s := range servers {
		for _, l := range loads {
			if s.pprof == 0 {
				continue
			}
			if err := b.profileOne(ctx, s, l); err != nil {
				return fmt.Errorf("profile of %s, %s: %w", s.name, l.what, err)
			}
		}
	}
	return nil
}

func (b *bench) profileOne(ctx context.Context, s *server, l *load) error {
	if _, err := b.warm(ctx, s, l, enough); err != nil {
		return err
	}
	return b.profileDuring(ctx, s, l.what, func() error {
		return b.askFor(ctx, s.port, l, profileSeconds+1)
	})
}

// profileDuring writes a CPU profile of a server under load.
func (b *bench) profileDuring(ctx context.Context, s *server, what string, ask func() error) error {
	if err := os.MkdirAll(b.profile, 0o755); err != nil {
		return err
	}
	path := b.profilePath(s.name, what)
	written := make(chan error, 1)
	go func() { written <- fetchProfile(ctx, s.pprof, fmt.Sprintf("profile?seconds=%d", profileSeconds), path) }()
	asked := ask()
	if err := <-written; err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "wrote", path)
	return asked
}

// profilePath returns the file of a profile.
func (b *bench) profilePath(server, what string) string {
	return filepath.Join(b.profile, server+"-"+fileName(what)+".pprof")
}

// fileName makes a name without spaces and punctuation.
func fileName(what string) string {
	return strings.Join(strings.FieldsFunc(what, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), "-")
}

func fetchProfile(ctx context.Context, port int, what, path string) error {
	url := fmt.Sprintf("http://127.0.0.1:%d/debug/pprof/%s", port, what)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, response.Status, text)
	}
	return os.WriteFile(path, text, 0o600)
}
