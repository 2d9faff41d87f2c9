// Command words prints the lines whose wording STYLE forbids (see CONTRIBUTING, "Words"), and fails if there are any. Input
// is the files of the module: comments, string literals and declared identifiers of Go, the text of Markdown pages, and
// comments of YAML files, scripts, templates and the Makefile. A line with "words:permit" is permitted: it should give
// the reason.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "root of the repository")
	flag.Parse()
	found, err := check(os.DirFS(*root))
	if err != nil {
		fmt.Fprintln(os.Stderr, "words:", err)
		os.Exit(2)
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		fmt.Printf("%d findings: name the subject, and use the field's verb\n", len(found))
		os.Exit(1)
	}
}
