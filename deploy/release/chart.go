package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// chartFolder is the chart in the repository.
const chartFolder = "deploy/helm/nearside"

// packageChart packages the chart with the version of the release, whose default images are those of the release. The times in it, and in
// the manifest that a push makes of the file's time, are that of the commit.
func (r *release) packageChart(ctx context.Context) error {
	place, err := os.MkdirTemp("", "nearside-chart-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(place) }()
	chart := filepath.Join(place, "nearside")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(r.tree, chartFolder))); err != nil {
		return err
	}
	if err := edit(filepath.Join(chart, "values.yaml"), r.releasedValues); err != nil {
		return err
	}
	if err := edit(filepath.Join(chart, "Chart.yaml"), r.annotated); err != nil {
		return err
	}
	helm, err := r.helm(ctx)
	if err != nil {
		return err
	}
	_, err = r.output(ctx, helm, "package", chart, "--version", r.number(), "--app-version", r.version, "--destination", r.folder)
	if err != nil {
		return err
	}
	created := time.Unix(r.created, 0)
	return os.Chtimes(r.chartFile(), created, created)
}

// chartFile returns the path of the packaged chart.
func (r *release) chartFile() string { return filepath.Join(r.folder, "nearside-"+r.number()+".tgz") }

// helm returns the path of Helm.
func (r *release) helm(ctx context.Context) (string, error) {
	if _, err := r.output(ctx, "test/install.sh", "helm"); err != nil {
		return "", err
	}
	bin, err := r.output(ctx, "test/install.sh", "--print-bin")
	return filepath.Join(strings.TrimSpace(bin), "helm"), err
}

// edit changes the text of a file.
func edit(path string, change func(string) (string, error)) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return os.WriteFile(path, []byte(changed), 0o644)
}

// releasedValues returns the chart's values with the images of the release.
func (r *release) releasedValues(text string) (string, error) {
	registry, folder, _ := strings.Cut(r.repository, "/")
	replaced := []string{"  registry: " + noRegistry + "\n", "  registry: " + registry + "\n"}
	for _, p := range programs {
		replaced = append(replaced, "    repository: nearside/"+p+"\n", "    repository: "+strings.TrimPrefix(folder+"/"+p, "/")+"\n")
	}
	for i := 0; i < len(replaced); i += 2 {
		if strings.Count(text, replaced[i]) != 1 {
			return "", fmt.Errorf("want one line %q", replaced[i])
		}
	}
	return strings.NewReplacer(replaced...).Replace(text), nil
}

// annotated returns the text of Chart.yaml with the annotations of Artifact Hub for the release.
func (r *release) annotated(text string) (string, error) {
	var chart map[string]any
	if err := yaml.Unmarshal([]byte(text), &chart); err != nil {
		return "", err
	}
	annotations, is := chart["annotations"].(map[string]any)
	if !is {
		return "", errors.New("no annotations")
	}
	type image struct {
		Name      string   `yaml:"name"`
		Image     string   `yaml:"image"`
		Platforms []string `yaml:"platforms"`
	}
	var images []image
	for _, p := range programs {
		images = append(images, image{p, r.repository + "/" + p + ":" + r.version, []string{"linux/amd64", "linux/arm64"}})
	}
	values := map[string]any{"images": images, "changes": changeList(r.changes)}
	for name, value := range values {
		list, err := yaml.Marshal(value)
		if err != nil {
			return "", err
		}
		annotations["artifacthub.io/"+name] = string(list)
	}
	annotations["artifacthub.io/prerelease"] = fmt.Sprint(strings.Contains(r.version, "-"))
	changed, err := yaml.Marshal(chart)
	return string(changed), err
}

// change is an entry of Artifact Hub's list of changes.
type change struct {
	Kind        string `yaml:"kind"`
	Description string `yaml:"description"`
}

// changeList returns the entries of a version in the changelog. Artifact Hub has the kinds of Keep a Changelog, in lower case.
func changeList(text string) (list []change) {
	kind := "changed"
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch heading, is := strings.CutPrefix(line, "### "); {
		case is:
			kind = strings.ToLower(heading)
		case strings.HasPrefix(line, "- "):
			list = append(list, change{kind, line[2:]})
		case len(list) > 0 && strings.TrimSpace(line) != "":
			list[len(list)-1].Description += " " + strings.TrimSpace(line)
		}
	}
	return list
}
