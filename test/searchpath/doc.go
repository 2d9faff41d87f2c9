// Package searchpath tests search names end to end: deploy/searchpath in a real API server (which pods receive the search
// entry, which stay unchanged, and that no pod is refused), and the answers of the programs with the plugin searchpath.
package searchpath
