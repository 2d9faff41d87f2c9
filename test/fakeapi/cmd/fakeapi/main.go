// Command fakeapi serves a generated cluster as a kube-apiserver would, for
// benchmarks of DNS servers.
//
// In goes the size of the cluster by flags; fakeapi.Generated tells what is in
// it and how everything is named. Out come LIST, WATCH and GET over plain HTTP.
// Once it answers it prints a line that begins with "serving". On SIGUSR1 it
// forgets its history and breaks all watches, so that clients list everything
// anew; on SIGINT and SIGTERM it ends.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/fakeapi"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "fakeapi: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var g fakeapi.Generated
	flags := flag.NewFlagSet("fakeapi", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:8001", "`host:port` to serve on")
	flags.IntVar(&g.Services, "services", 10000, "`number` of Services")
	flags.IntVar(&g.Endpoints, "endpoints", 110000, "`number` of endpoints of all Services together")
	flags.IntVar(&g.Nodes, "nodes", 5000, "`number` of Nodes")
	flags.IntVar(&g.Namespaces, "namespaces", 100, "`number` of Namespaces")
	flags.IntVar(&g.Imports, "imports", 0, "`number` of ServiceImports")
	flags.Float64Var(&g.Headless, "headless", 0.1, "`share` of the Services, and of the imports, which are headless, from 0 to 1")
	flags.Uint64Var(&g.Seed, "seed", 1, "`seed` of what is random")
	bookmarks := flags.Duration("bookmarks", 0, "`interval` between bookmarks, 0 for a minute")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("flags: unexpected %q", flags.Arg(0))
	}

	// Taken before anything else, so that none is lost or deadly.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM)

	srv := fakeapi.New()
	if *bookmarks > 0 {
		srv.SetBookmarkInterval(*bookmarks)
	}
	objects := 0
	err := g.Each(func(obj runtime.Object) error {
		objects++
		return srv.Put(obj)
	})
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // what making the objects took is not needed any more
	if err := srv.Listen(*listen); err != nil {
		return err
	}
	fmt.Printf("serving %s: %d objects, %d services, %d endpoints, %d nodes, %d namespaces\n",
		srv.URL(), objects, g.Services, g.Endpoints, g.Nodes, g.Namespaces)

	for s := range signals {
		if s != syscall.SIGUSR1 {
			return srv.Close()
		}
		srv.Expire()
		srv.DropWatches("")
		fmt.Println("expired the history and dropped all watches")
	}
	return nil
}
