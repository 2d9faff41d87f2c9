package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
)

const module = "github.com/nearside-dns/nearside/"

// List returns the packages of the programs with the packages of the module that each imports, tests apart, as paths
// from the root of the repository.
func List(root string) (map[string][]string, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./cmd/...", "./plugin/...")
	cmd.Dir = root
	cmd.Env = append(cmd.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	imports := map[string][]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := decoder.Decode(&p); err == io.EOF {
			return imports, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
		own := []string{}
		for _, path := range p.Imports {
			if path, ok := strings.CutPrefix(path, module); ok {
				own = append(own, path)
			}
		}
		imports[strings.TrimPrefix(p.ImportPath, module)] = own
	}
}

// Floors returns the packages by floor, sorted: the first floor imports nothing of the module.
func Floors(imports map[string][]string) (floors [][]string) {
	height := map[string]int{}
	var measure func(string) int
	measure = func(path string) int {
		if h, ok := height[path]; ok {
			return h
		}
		h := 0
		for _, imported := range imports[path] {
			h = max(h, measure(imported)+1)
		}
		height[path] = h
		return h
	}
	for _, path := range slices.Sorted(maps.Keys(imports)) {
		h := measure(path)
		for len(floors) <= h {
			floors = append(floors, nil)
		}
		floors[h] = append(floors[h], path)
	}
	return floors
}
