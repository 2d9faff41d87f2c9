// Package subcommand reads the flags of subcommands, and prints their help and their errors. Input: the arguments;
// output: flag values, one line for each error, and the exit code. It imports nothing of the programs.
package subcommand

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// Parse reads flags, without arguments after them. For -help it prints the description and the flags, and returns
// flag.ErrHelp. An error of the writer is ignored, since it could only be printed there.
func Parse(f *flag.FlagSet, args []string, description string, out io.Writer) error {
	f.SetOutput(io.Discard) // Exit prints an error once
	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(out, description+"\n\n")
		f.SetOutput(out)
		f.PrintDefaults()
	}
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return err
}

// Exit prints an error of the flags, and returns the exit code: 0 after the help, else 2.
func Exit(w io.Writer, name string, err error) int {
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	Print(w, name, fmt.Errorf("%w; see %s -help", err, name))
	return 2
}

// Print prints an error of a subcommand in one line.
func Print(w io.Writer, name string, err error) {
	_, _ = fmt.Fprintf(w, "%s: %s\n", name, strings.Join(strings.Fields(err.Error()), " "))
}
