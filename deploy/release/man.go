package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// page is a man page.
type page struct {
	name    string // of the file, with the section
	content []byte
}

// writeManPages writes an archive with a man page of each program, from docs/configuration.md, and of each plugin, from its README.
func (r *release) writeManPages(ctx context.Context) error {
	pages, err := r.manPages(ctx)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range pages {
		header := &tar.Header{Name: p.name, Mode: 0o644, Size: int64(len(p.content)), ModTime: time.Unix(r.created, 0), Format: tar.FormatPAX}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		if _, err := w.Write(p.content); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.folder, "nearside-man.tar"), b.Bytes(), 0o644)
}

// manPages returns all pages.
func (r *release) manPages(ctx context.Context) (pages []page, err error) {
	converter, err := r.tool(ctx, "go-md2man", "github.com/cpuguy83/go-md2man/v2")
	if err != nil {
		return nil, err
	}
	reference, err := os.ReadFile(filepath.Join(r.tree, "docs", "configuration.md"))
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	for _, program := range programs {
		if sources[program+".8"], err = programPage(string(reference), program); err != nil {
			return nil, err
		}
	}
	readmes, err := filepath.Glob(filepath.Join(r.tree, "plugin", "*", "README.md"))
	if err != nil {
		return nil, err
	}
	for _, path := range readmes {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sources["nearside-"+filepath.Base(filepath.Dir(path))+".7"] = pluginPage(string(text))
	}
	for name, text := range sources {
		p := page{name: name}
		if p.content, err = r.manPage(ctx, converter, name, text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		pages = append(pages, p)
	}
	slices.SortFunc(pages, func(a, b page) int { return strings.Compare(a.name, b.name) })
	return pages, nil
}

// manPage converts markdown to a man page.
func (r *release) manPage(ctx context.Context, converter, name, text string) ([]byte, error) {
	title, section, _ := strings.Cut(name, ".")
	date := time.Unix(r.created, 0).UTC().Format(time.DateOnly)
	head := fmt.Sprintf("%% %s %s %q %q %q\n\n", strings.ToUpper(title), section, date, r.version, "nearside")
	source, err := os.CreateTemp("", "nearside-man-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(source.Name()) }()
	if _, err := source.WriteString(head + text); err != nil {
		return nil, err
	}
	if err := source.Close(); err != nil {
		return nil, err
	}
	out, err := r.output(ctx, converter, "-in", source.Name())
	return []byte(out), err
}

// link is a link of markdown to a page of the repository, of which a man page has only the text.
var link = regexp.MustCompile(`\[([^\]]*)\]\((?:[^)h][^)]*|h[^)t][^)]*)\)`)

// pluginPage returns the README of a plugin without its title, with sections one level higher.
func pluginPage(text string) string {
	_, text, _ = strings.Cut(text, "\n")
	return regexp.MustCompile(`(?m)^#(#+ )`).ReplaceAllString(link.ReplaceAllString(text, "$1"), "$1")
}

// programPage returns the page of a program: the flags of its commands, and what both programs have in common.
func programPage(reference, program string) (string, error) {
	purposes := map[string]string{"clusterdns": "cluster DNS server of nearside", "nodecache": "DNS cache of a Kubernetes node"}
	text := "# Name\n\n" + program + " - " + purposes[program] + "\n\n# Commands\n"
	for _, heading := range regexp.MustCompile(`(?m)^### `+program+`.*$`).FindAllString(reference, -1) {
		section, err := sectionOf(reference, heading)
		if err != nil {
			return "", err
		}
		text += "\n" + strings.TrimPrefix(heading, "#") + "\n" + section
	}
	common, err := sectionOf(reference, "## Environment and signals")
	if err != nil {
		return "", err
	}
	text += "\n# Environment and signals\n" + common + "\n# See also\n\nThe pages of the plugins, such as nearside-kubernetes(7) and nearside-cache(7).\n"
	return link.ReplaceAllString(text, "$1"), nil
}

// sectionOf returns the text below a heading, up to the next heading.
func sectionOf(text, heading string) (string, error) {
	_, rest, found := strings.Cut(text, "\n"+heading+"\n")
	if !found {
		return "", fmt.Errorf("docs/configuration.md has no heading %q", heading)
	}
	if end := regexp.MustCompile(`(?m)^##`).FindStringIndex(rest); end != nil {
		rest = rest[:end[0]]
	}
	return rest, nil
}
