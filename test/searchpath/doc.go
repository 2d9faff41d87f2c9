// Package searchpath tests names that carry their search path: deploy/searchpath against a real API server, which pods
// get the search entry, what is left alone, and that no pod is ever refused; and the directive in the programs, what
// pods with the entry are answered.
package searchpath
