package block

import (
	"reflect"
	"strings"

	"github.com/coredns/coredns/plugin"
)

// traits describe how a plugin and the fast path work together in a server block. An unknown plugin has none.
type traits struct {
	// hits is set if stored answers may be sent without the plugin: it is behind cache in the chain, or does nothing to a
	// query with a stored answer and to the answer, or the fast path does its work.
	hits bool
	// misses is set if queries in wire form without a stored answer may skip it, too.
	misses bool
	// late is set if it answers some queries before kubernetes, or changes answers of kubernetes on their way to cache: the answers
	// are stored where they arrive at cache, and not by kubernetes.
	late bool
	// silent is set if its answers change without an advance of the generations of kubernetes: none is valid by generations.
	silent bool
	// signs is set if it signs answers: none of their bytes may be changed.
	signs bool
	// neutral is set if it changes neither queries for cluster names nor their answers, so that kubernetes may try the candidates
	// of a search list.
	neutral bool
}

// plugins have the traits of the known plugins, some of which are only in builds of CoreDNS. The README of fastpath explains them.
var plugins = map[string]traits{
	"any":          {hits: true, misses: true, neutral: true}, // answers type ANY only
	"auto":         {hits: true},
	"autopath":     {hits: true, neutral: true}, // the fast path looks up its search lists
	"azure":        {hits: true, late: true, silent: true},
	"bufsize":      {hits: true, misses: true, neutral: true},
	"cache":        {hits: true, neutral: true},
	"cancel":       {hits: true, neutral: true},
	"chaos":        {hits: true, misses: true, neutral: true}, // answers class CH only
	"clouddns":     {hits: true, late: true, silent: true},
	"dns64":        {hits: true, misses: true}, // see DNS64
	"dnssec":       {hits: true, late: true, silent: true, signs: true},
	"erratic":      {hits: true},                              // its answers have the TTL 0
	"errors":       {hits: true, misses: true, neutral: true}, // logs errors, which are not stored
	"etcd":         {hits: true},
	"file":         {hits: true},
	"forward":      {hits: true, neutral: true},
	"geoip":        {hits: true, misses: true, neutral: true}, // serves only plugins that have to see every query
	"grpc":         {hits: true},
	"header":       {hits: true, late: true, neutral: true},
	"hosts":        {hits: true, late: true, silent: true},
	"k8s_external": {hits: true}, // stores its answers as kubernetes does; see neutral in plugin kubernetes
	"kubernetes":   {hits: true},
	"loadbalance":  {hits: true, misses: true, neutral: true}, // round_robin only
	"local":        {hits: true, misses: true, neutral: true},
	"log":          {hits: true, neutral: true},               // by zone and class, see LogRules
	"loop":         {hits: true, misses: true, neutral: true}, // recognizes its own queries, whose answers are not stored
	"metadata":     {hits: true, misses: true, neutral: true}, // serves only plugins that have to see every query
	"minimal":      {hits: true, late: true},
	"multicluster": {hits: true},                // is kubernetes for other zones
	"nodelocal":    {hits: true, neutral: true}, // answers only the queries that it sends itself
	"nomad":        {hits: true},
	"nsid":         {hits: true, misses: true, neutral: true}, // answers an option; a query with it is not ordinary, see wire.Query.Parse
	"prometheus":   {hits: true, misses: true, neutral: true}, // the fast path counts in its metrics
	"rewrite":      {hits: true},                              // for names that no rule changes, see Rewrites
	"route53":      {hits: true, late: true, silent: true},
	"searchpath":   {hits: true, neutral: true}, // its answers are stored
	"secondary":    {hits: true},
	"shed":         {hits: true, misses: true, neutral: true}, // the fast path limits its queues by itself
	"template":     {hits: true, late: true},
	"trace":        {neutral: true},             // a span for every query
	"transfer":     {hits: true, misses: true},  // zone transfers are not stored
	"whoami":       {hits: true, neutral: true}, // its answers have the TTL 0
}

// replaced has the traits of CoreDNS's plugins that nearside replaces: a build of CoreDNS may have plugins of both projects.
var replaced = map[string]traits{
	"autopath":     {}, // its answers are not stored: the stored answer for the first candidate would be sent instead
	"cache":        {},
	"dnssec":       {hits: true, late: true, silent: true, signs: true},
	"forward":      {hits: true, neutral: true},
	"k8s_external": {hits: true},
	"kubernetes":   {hits: true},
	"multicluster": {hits: true},
	"trace":        {},
}

// isReplaced reports whether a handler is CoreDNS's, while nearside has its own of this name.
func isReplaced(h plugin.Handler) bool {
	if _, ok := replaced[h.Name()]; !ok {
		return false
	}
	implementation := reflect.TypeOf(h)
	if implementation.Kind() == reflect.Pointer {
		implementation = implementation.Elem()
	}
	return strings.HasPrefix(implementation.PkgPath(), "github.com/coredns/")
}

func traitsOf(h plugin.Handler) traits {
	if isReplaced(h) {
		return replaced[h.Name()]
	}
	return plugins[h.Name()]
}
