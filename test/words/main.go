// Command words prints the lines of comments, messages and pages that use wording which STYLE forbids (see CONTRIBUTING,
// "Words"), and fails if there are any. Input is the Go files and Markdown pages of the module; it reads comments and
// string literals, not identifiers.
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
		fmt.Printf("%d lines: name the subject, and use the field's verb\n", len(found))
		os.Exit(1)
	}
}
