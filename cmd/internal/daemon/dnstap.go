package daemon

import (
	"reflect"
	"runtime"
	"strings"
	"sync"

	"github.com/coredns/caddy"
	"github.com/coredns/caddy/caddyfile"
)

// dnstapSymbol begins the names of the callbacks of CoreDNS's plugin dnstap.
const dnstapSymbol = "github.com/coredns/coredns/plugin/dnstap.setup."

// guardDnstap has each output of plugin dnstap close once. CoreDNS closes it before a reload, sends nothing more if the reload is
// refused, and panics when it closes the output again. Here a connection to a collector closes when the next configuration
// serves. A listener for collectors closes before the reload, since the next configuration listens on its address.
func guardDnstap(instance *caddy.Instance) {
	closes := indexes(instance.OnRestart, isDnstap)
	if len(closes) == 0 {
		return
	}
	final := indexes(instance.OnFinalShutdown, isDnstap)
	listens := dnstapListens(instance.Caddyfile())
	if len(closes) != len(final) || len(closes) != len(listens) {
		return // another version of the plugin
	}
	for n, i := range closes {
		end := sync.OnceValue(instance.OnRestart[i])
		instance.OnFinalShutdown[final[n]] = end
		if listens[n] {
			instance.OnRestart[i] = end
			continue
		}
		reloading := false // callbacks of a reload are called one after the other; the end of the process calls OnShutdown as well
		instance.OnRestart[i] = func() error { reloading = true; return nil }
		instance.OnRestartFailed = append(instance.OnRestartFailed, func() error { reloading = false; return nil })
		instance.OnShutdown = append(instance.OnShutdown, func() error {
			if reloading {
				return end()
			}
			return nil
		})
	}
}

func isDnstap(callback func() error) bool {
	f := runtime.FuncForPC(reflect.ValueOf(callback).Pointer())
	return f != nil && strings.HasPrefix(f.Name(), dnstapSymbol)
}

// indexes returns the indexes of the callbacks that satisfy the predicate is.
func indexes(callbacks []func() error, is func(func() error) bool) (all []int) {
	for i, c := range callbacks {
		if is(c) {
			all = append(all, i)
		}
	}
	return all
}

// dnstapListens returns for each dnstap directive, in the order in which CoreDNS reads them, whether it listens for collectors.
func dnstapListens(in caddy.Input) (all []bool) {
	blocks, err := caddyfile.Parse(in.Path(), strings.NewReader(string(in.Body())), nil)
	if err != nil {
		return nil
	}
	for _, b := range blocks {
		d := caddyfile.NewDispenserTokens(in.Path(), b.Tokens["dnstap"])
		for d.Next() {
			args := d.RemainingArgs()
			all = append(all, len(args) > 0 && args[0] == "listen")
			for d.NextBlock() {
				d.RemainingArgs()
			}
		}
	}
	return all
}
