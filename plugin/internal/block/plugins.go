package block

// traits describe how a plugin and the fast path work together in a server block. Those of a plugin that is not known are all
// false.
type traits struct {
	// hits is set if stored answers may be sent without the plugin: it is behind cache in the chain, or does nothing to such a
	// query and its answer, or the fast path does its work.
	hits bool
	// misses is set if queries in wire form may pass without it, too.
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

// plugins have the traits of the known plugins. The README of fastpath explains them.
var plugins = map[string]traits{
	"any":          {hits: true, misses: true, neutral: true}, // answers type ANY only
	"auto":         {hits: true},
	"autopath":     {hits: true, neutral: true}, // the fast path looks up its search lists
	"bufsize":      {hits: true, misses: true, neutral: true},
	"cache":        {hits: true, neutral: true},
	"cancel":       {hits: true, neutral: true},
	"chaos":        {hits: true, misses: true, neutral: true}, // answers class CH only
	"dns64":        {hits: true, misses: true},                // see DNS64
	"dnssec":       {hits: true, late: true, silent: true, signs: true},
	"erratic":      {hits: true},                              // its answers have the TTL 0
	"errors":       {hits: true, misses: true, neutral: true}, // logs errors, which are not stored
	"file":         {hits: true},
	"forward":      {hits: true, neutral: true},
	"grpc":         {hits: true},
	"header":       {hits: true, late: true, neutral: true},
	"hosts":        {hits: true, late: true, silent: true},
	"kubernetes":   {hits: true},
	"loadbalance":  {hits: true, misses: true, neutral: true}, // round_robin only
	"local":        {hits: true, misses: true, neutral: true},
	"log":          {hits: true, neutral: true},               // by zone and class, see LogRules
	"loop":         {hits: true, misses: true, neutral: true}, // recognizes its own queries, whose answers are not stored
	"metadata":     {hits: true, misses: true, neutral: true}, // serves only plugins that have to see every query
	"minimal":      {hits: true, late: true},
	"multicluster": {hits: true},                              // is kubernetes for other zones
	"nodelocal":    {hits: true, neutral: true},               // answers only the queries that it sends itself
	"nsid":         {hits: true, misses: true, neutral: true}, // answers an option with which a query is no ordinary one
	"prometheus":   {hits: true, misses: true, neutral: true}, // the fast path counts in its metrics
	"rewrite":      {hits: true},                              // for names that no rule changes, see Rewrites
	"searchpath":   {hits: true, neutral: true},               // its answers are stored
	"secondary":    {hits: true},
	"template":     {hits: true, late: true},
	"trace":        {neutral: true},             // a span for every query
	"transfer":     {hits: true, misses: true},  // zone transfers are not stored
	"whoami":       {hits: true, neutral: true}, // its answers have the TTL 0
}
