// Command floors draws docs/pictures/floors.svg: the packages of the programs by floor. The ground floor has the packages
// that import no other package of the module; each other package is one floor above the highest package that it imports.
// Input is the imports that "go list" prints; output is one SVG file.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// picture is the path of the file, from the root of the repository.
const picture = "docs/pictures/floors.svg"

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	if err := run(*root); err != nil {
		fmt.Fprintln(os.Stderr, "floors:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	imports, err := List(root)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, picture), []byte(draw(Floors(imports))), 0o644)
}
