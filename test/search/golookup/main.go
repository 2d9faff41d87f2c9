// Command golookup looks up a name by Go's own resolver, for the tests of package search.
//
//	golookup any|4|6|name NAME
//
// It prints a line "address ADDRESS" for each address, with "name" a line "canonical NAME"; or one line "error REASON".
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: golookup any|4|6|name NAME")
		os.Exit(2)
	}
	if err := lookup(os.Args[1], os.Args[2]); err != nil {
		fmt.Println("error", reason(err))
	}
}

func lookup(what, name string) error {
	resolver := net.Resolver{PreferGo: true}
	if what == "name" {
		canonical, err := resolver.LookupCNAME(context.Background(), name)
		if err == nil {
			fmt.Println("canonical", strings.TrimSuffix(canonical, "."))
		}
		return err
	}
	all, err := resolver.LookupNetIP(context.Background(), map[string]string{"any": "ip", "4": "ip4", "6": "ip6"}[what], name)
	for _, a := range all {
		fmt.Println("address", a.Unmap())
	}
	return err
}

// reason returns the word of testdata/lookup.c for an error.
func reason(err error) string {
	var failure *net.DNSError
	switch {
	case !errors.As(err, &failure):
		return err.Error()
	case failure.IsNotFound:
		return "none"
	case failure.IsTemporary, failure.IsTimeout:
		return "again"
	}
	return failure.Error()
}
