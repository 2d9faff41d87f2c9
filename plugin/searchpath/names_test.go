package searchpath

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"
)

// testGrammar has zones that are suffixes of each other, and a suffix that is under one of them.
func testGrammar() *grammar {
	return &grammar{
		suffix:  "ap.k8s.io.",
		zones:   []string{"local.", "cluster.local.", "k8s.example.com."},
		schemas: []schema{{label: "v1", unversioned: true}, {label: "v3"}},
	}
}

var kinds = map[nameKind]string{invalid: "invalid", empty: "empty", apex: "apex", unknownSchema: "unknown schema", search: "search"}

func TestParseName(t *testing.T) {
	shop := searchName{namespace: "shop", zone: "cluster.local."}
	with := func(base, schema string) searchName {
		n := shop
		n.base, n.schema = base, schema
		return n
	}
	for name, want := range map[string]struct {
		kind nameKind
		name searchName
	}{
		// Names with a version, without one, and with an unknown one.
		"web.v1.search.shop.cluster.local":             {search, with("web.", "v1")},
		"web.search.shop.cluster.local":                {search, with("web.", "")},
		"web.v3.search.shop.cluster.local":             {search, with("web.", "v3")},
		"web.v2.search.shop.cluster.local":             {unknownSchema, with("", "v2")},
		"web.v01.search.shop.cluster.local":            {unknownSchema, with("", "v01")},
		"web.v0.search.shop.cluster.local":             {unknownSchema, with("", "v0")},
		"web.v11111111111.search.shop.cluster.local":   {unknownSchema, with("", "v11111111111")},
		"v2.search.shop.cluster.local":                 {unknownSchema, with("", "v2")},
		"www.example.org.v1.search.shop.cluster.local": {search, with("www.example.org.", "v1")},
		"_sql._tcp.db.v1.search.shop.cluster.local":    {search, with("_sql._tcp.db.", "v1")},

		// Names that look like the grammar's own.
		"search.v1.search.shop.cluster.local":                             {search, with("search.", "v1")},
		"search.search.shop.cluster.local":                                {search, with("search.", "")},
		"search.search.search.shop.cluster.local":                         {search, with("search.search.", "")},
		"v1.v1.search.shop.cluster.local":                                 {search, with("v1.", "v1")},
		"v2.v1.search.shop.cluster.local":                                 {search, with("v2.", "v1")},
		"v1.v2.search.shop.cluster.local":                                 {unknownSchema, with("", "v2")},
		"web.v1.search.v1.search.shop.cluster.local":                      {search, with("web.v1.search.", "v1")},
		"web.search.office.search.shop.cluster.local":                     {search, with("web.search.office.", "")},
		"web.v1.search.office.cluster.local.v1.search.shop.cluster.local": {search, with("web.v1.search.office.cluster.local.", "v1")},
		"v.search.shop.cluster.local":                                     {search, with("v.", "")},
		"v1a.search.shop.cluster.local":                                   {search, with("v1a.", "")},
		"va1.search.shop.cluster.local":                                   {search, with("va1.", "")},
		"1.search.shop.cluster.local":                                     {search, with("1.", "")},
		"search.search.search.cluster.local":                              {search, searchName{base: "search.", namespace: "search", zone: "cluster.local."}},
		"web.v1.search.v1.cluster.local":                                  {search, searchName{base: "web.", schema: "v1", namespace: "v1", zone: "cluster.local."}},

		// Zones.
		"web.v1.search.shop.local":                       {search, searchName{base: "web.", schema: "v1", namespace: "shop", zone: "local."}},
		"web.v1.search.shop.k8s.example.com":             {search, searchName{base: "web.", schema: "v1", namespace: "shop", zone: "k8s.example.com."}},
		"web.v1.search.cluster.local":                    {invalid, searchName{}}, // search is the namespace
		"web.search.search.cluster.local":                {search, searchName{base: "web.", namespace: "search", zone: "cluster.local."}},
		"web.v1.search.shop.xcluster.local":              {invalid, searchName{}},
		"web.v1.search.shop.cluster.example":             {invalid, searchName{}},
		"web.v1.search.shop.example.com":                 {invalid, searchName{}},
		"web.v1.search.shop.cluster.local.cluster.local": {invalid, searchName{}},
		"example.org": {invalid, searchName{}},

		// Names above search names exist.
		"":                             {apex, searchName{}},
		"com":                          {empty, searchName{}},
		"example.com":                  {empty, searchName{}},
		"k8s.example.com":              {empty, searchName{}},
		"local":                        {empty, searchName{}},
		"cluster.local":                {empty, searchName{}},
		"shop.cluster.local":           {empty, searchName{}},
		"search.cluster.local":         {empty, searchName{}},
		"search.shop.cluster.local":    {empty, shop},
		"v1.search.shop.cluster.local": {empty, with("", "v1")},
		"org":                          {invalid, searchName{}},
		"xcom":                         {invalid, searchName{}},

		// Case.
		"WeB.V1.SEARCH.Shop.Cluster.LOCAL": {search, with("web.", "v1")},
		"WEB.V2.search.SHOP.cluster.local": {unknownSchema, with("", "v2")},

		// Namespaces.
		"web.v1.search.-shop.cluster.local":                           {invalid, searchName{}},
		"web.v1.search.shop-.cluster.local":                           {invalid, searchName{}},
		"web.v1.search._shop.cluster.local":                           {invalid, searchName{}},
		"web.v1.search.*.cluster.local":                               {invalid, searchName{}},
		`web.v1.search.sh\.op.cluster.local`:                          {invalid, searchName{}},
		`web.v1.search.sh\195\182p.cluster.local`:                     {invalid, searchName{}},
		"_shop.cluster.local":                                         {invalid, searchName{}},
		"web.v1.search.0.cluster.local":                               {search, searchName{base: "web.", schema: "v1", namespace: "0", zone: "cluster.local."}},
		"web.v1.search.a--b.cluster.local":                            {search, searchName{base: "web.", schema: "v1", namespace: "a--b", zone: "cluster.local."}},
		"web.v1.search." + strings.Repeat("n", 63) + ".cluster.local": {search, searchName{base: "web.", schema: "v1", namespace: strings.Repeat("n", 63), zone: "cluster.local."}},

		// Other labels in the place of search.
		"web.v1.find.shop.cluster.local":      {invalid, searchName{}},
		"web.shop.cluster.local":              {invalid, searchName{}},
		"web.shop.svc.cluster.local":          {invalid, searchName{}},
		`web.v1\.search.shop.cluster.local`:   {invalid, searchName{}},
		`web.v1.\115earch.shop.cluster.local`: {invalid, searchName{}}, // an unpacked name is never in this form

		// Labels of any bytes.
		`a\.b.v1.search.shop.cluster.local`:             {search, with(`a\.b.`, "v1")},
		`a\\.v1.search.shop.cluster.local`:              {search, with(`a\\.`, "v1")},
		`web\.v1.search.shop.cluster.local`:             {search, with(`web\.v1.`, "")},
		`web.\.v1.search.shop.cluster.local`:            {search, with(`web.\.v1.`, "")},
		`\195\182.example.v1.search.shop.cluster.local`: {search, with(`\195\182.example.`, "v1")},
		`a\032b.v1.search.shop.cluster.local`:           {search, with(`a\032b.`, "v1")},
		`*.v1.search.shop.cluster.local`:                {search, with(`*.`, "v1")},

		// Search names of search names.
		"web.v1.search.shop.cluster.local.ap.k8s.io.v1.search.shop.cluster.local": {invalid, searchName{}},
		"web.AP.k8s.io.search.shop.cluster.local":                                 {invalid, searchName{}},
		"ap.k8s.io.v1.search.shop.cluster.local":                                  {invalid, searchName{}},
		`web\.ap.k8s.io.v1.search.shop.cluster.local`:                             {search, with(`web\.ap.k8s.io.`, "v1")},
		"k8s.io.v1.search.shop.cluster.local":                                     {search, with("k8s.io.", "v1")},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "" {
				name += "."
			}
			n, kind := testGrammar().parse(name + "Ap.K8s.io.")
			if kind != want.kind || n != want.name {
				t.Errorf("%s %+v, want %s %+v", kinds[kind], n, kinds[want.kind], want.name)
			}
		})
	}
}

func TestContains(t *testing.T) {
	g := testGrammar()
	for name, want := range map[string]bool{
		"ap.k8s.io.": true, "AP.K8S.IO.": true, "x.ap.k8s.io.": true, `x\..aP.k8s.io.`: true,
		".": false, "io.": false, "k8s.io.": false, "xap.k8s.io.": false, `x\.ap.k8s.io.`: false, "ap.k8s.io.example.": false,
	} {
		if got := g.contains(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestNoUnversionedSchema: without an unversioned schema, names without a version are unknown.
func TestNoUnversionedSchema(t *testing.T) {
	g := testGrammar()
	g.schemas = g.schemas[1:]
	for name, want := range map[string]nameKind{
		"web.v3.search.shop.local.ap.k8s.io.": search,
		"web.v1.search.shop.local.ap.k8s.io.": unknownSchema,
		"web.search.shop.local.ap.k8s.io.":    unknownSchema,
	} {
		if _, got := g.parse(name); got != want {
			t.Errorf("%s: %s, want %s", name, kinds[got], kinds[want])
		}
	}
}

var (
	namespaceForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	schemaForm    = regexp.MustCompile(`^v[0-9]+$`)
)

// reversed returns the labels of a name from the right, in lower case.
func reversed(name string) []string {
	labels := dns.SplitDomainName(strings.ToLower(name))
	slices.Reverse(labels)
	return labels
}

func hasPrefix(labels, prefix []string) bool {
	return len(labels) >= len(prefix) && slices.Equal(labels[:len(prefix)], prefix)
}

// slowParse is a readable, slow grammar.parse.
func slowParse(g *grammar, name string) (n searchName, kind nameKind) {
	left := reversed(name)[len(reversed(g.suffix)):]
	if len(left) == 0 {
		return n, apex
	}
	isEmpty := false
	for _, zone := range g.zones {
		labels := reversed(zone)
		isEmpty = isEmpty || hasPrefix(labels, left)
		if hasPrefix(left, labels) && len(labels) > len(reversed(n.zone)) {
			n.zone = zone
		}
	}
	if n.zone == "" {
		if isEmpty {
			return n, empty
		}
		return n, invalid
	}
	left = left[len(reversed(n.zone)):]
	switch {
	case len(left) == 0:
		return searchName{}, empty
	case !namespaceForm.MatchString(left[0]):
		return searchName{}, invalid
	case len(left) == 1:
		return searchName{}, empty
	case left[1] != "search":
		return searchName{}, invalid
	}
	n.namespace, left = left[0], left[2:]
	if len(left) > 0 && schemaForm.MatchString(left[0]) {
		n.schema, left = left[0], left[1:]
	}
	if n.schema != "" && n.schema != "v1" && n.schema != "v3" {
		return n, unknownSchema
	}
	if len(left) == 0 {
		return n, empty
	}
	if hasPrefix(left, reversed(g.suffix)) {
		return searchName{}, invalid
	}
	slices.Reverse(left)
	n.base = strings.Join(left, ".") + "."
	return n, search
}

// TestParseNameAgainstModel compares parse with slowParse, for random names of labels of the grammar.
func TestParseNameAgainstModel(t *testing.T) {
	g := testGrammar()
	labels := []string{"web", "search", "v1", "v2", "v3", "shop", "cluster", "local", "example", "com", "k8s", "io", "ap", "Search", "V1", `a\.b`, "-x", "x_y", `\200`, "svc"}
	property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 2))
		seen := map[nameKind]int{}
		for range 50_000 {
			name := "ap.k8s.io."
			if random.IntN(3) > 0 {
				name = []string{"shop.cluster.local.", "search.shop.local.", "v1.search.shop.k8s.example.com.", "local."}[random.IntN(4)] + name
			}
			for range random.IntN(6) {
				name = labels[random.IntN(len(labels))] + "." + name
			}
			n, kind := g.parse(name)
			wantName, want := slowParse(g, name)
			if n != wantName || kind != want {
				t.Fatalf("%s: %s %+v, want %s %+v", name, kinds[kind], n, kinds[want], wantName)
			}
			seen[kind]++
		}
		for kind, text := range kinds {
			if seen[kind] < 100 && property.Fixed() {
				t.Errorf("only %d names are %s", seen[kind], text)
			}
		}
	})
}

// FuzzParseName parses names in wire form under the suffix.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{
		"web.v1.search.shop.cluster.local.", "a.b.search.x.local.", `\.\\\200.v1.search.shop.cluster.local.`, ".", "local.", "v2.search.shop.k8s.example.com.",
	} {
		b := make([]byte, 255)
		n, err := dns.PackDomainName(name, b, 0, nil, false)
		kit.Must(f, err)
		f.Add(b[:n-1])
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		suffix := "\x02ap\x03k8s\x02io\x00"
		name, _, err := dns.UnpackDomainName(append(slices.Clone(wire), suffix...), 0)
		g := testGrammar()
		if err != nil || !g.contains(name) {
			t.Skip("not a name under the suffix")
		}
		n, kind := g.parse(name)
		wantName, want := slowParse(g, name)
		if n != wantName || kind != want {
			t.Fatalf("%q: %s %+v, want %s %+v", name, kinds[kind], n, kinds[want], wantName)
		}
		if kind != search {
			return
		}
		version := ""
		if n.schema != "" {
			version = n.schema + "."
		}
		if again := n.base + version + "search." + n.namespace + "." + n.zone + g.suffix; again != strings.ToLower(name) {
			t.Errorf("%q is parsed into %q", name, again)
		}
		for _, suffix := range append(clusterFirst(n.namespace, n.zone), "") {
			if _, ok := dns.IsDomainName(n.base + suffix); !ok {
				t.Errorf("%q has the candidate %q", name, n.base+suffix)
			}
		}
	})
}
