package searchpath

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

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

var meanings = map[meaning]string{foreign: "foreign", above: "above", apex: "apex", unknownSchema: "unknown schema", lookup: "lookup"}

func TestParseName(t *testing.T) {
	shop := searchName{namespace: "shop", zone: "cluster.local."}
	of := func(base, schema string) searchName {
		n := shop
		n.base, n.schema = base, schema
		return n
	}
	for name, want := range map[string]struct {
		meaning meaning
		name    searchName
	}{
		// With a version, without, and with one that is not known.
		"web.v1.search.shop.cluster.local":             {lookup, of("web.", "v1")},
		"web.search.shop.cluster.local":                {lookup, of("web.", "")},
		"web.v3.search.shop.cluster.local":             {lookup, of("web.", "v3")},
		"web.v2.search.shop.cluster.local":             {unknownSchema, of("", "v2")},
		"web.v01.search.shop.cluster.local":            {unknownSchema, of("", "v01")},
		"web.v0.search.shop.cluster.local":             {unknownSchema, of("", "v0")},
		"web.v11111111111.search.shop.cluster.local":   {unknownSchema, of("", "v11111111111")},
		"v2.search.shop.cluster.local":                 {unknownSchema, of("", "v2")},
		"www.example.org.v1.search.shop.cluster.local": {lookup, of("www.example.org.", "v1")},
		"_sql._tcp.db.v1.search.shop.cluster.local":    {lookup, of("_sql._tcp.db.", "v1")},

		// Names that look like the grammar's own.
		"search.v1.search.shop.cluster.local":                             {lookup, of("search.", "v1")},
		"search.search.shop.cluster.local":                                {lookup, of("search.", "")},
		"search.search.search.shop.cluster.local":                         {lookup, of("search.search.", "")},
		"v1.v1.search.shop.cluster.local":                                 {lookup, of("v1.", "v1")},
		"v2.v1.search.shop.cluster.local":                                 {lookup, of("v2.", "v1")},
		"v1.v2.search.shop.cluster.local":                                 {unknownSchema, of("", "v2")},
		"web.v1.search.v1.search.shop.cluster.local":                      {lookup, of("web.v1.search.", "v1")},
		"web.search.office.search.shop.cluster.local":                     {lookup, of("web.search.office.", "")},
		"web.v1.search.office.cluster.local.v1.search.shop.cluster.local": {lookup, of("web.v1.search.office.cluster.local.", "v1")},
		"v.search.shop.cluster.local":                                     {lookup, of("v.", "")},
		"v1a.search.shop.cluster.local":                                   {lookup, of("v1a.", "")},
		"va1.search.shop.cluster.local":                                   {lookup, of("va1.", "")},
		"1.search.shop.cluster.local":                                     {lookup, of("1.", "")},
		"search.search.search.cluster.local":                              {lookup, searchName{base: "search.", namespace: "search", zone: "cluster.local."}},
		"web.v1.search.v1.cluster.local":                                  {lookup, searchName{base: "web.", schema: "v1", namespace: "v1", zone: "cluster.local."}},

		// Zones.
		"web.v1.search.shop.local":                       {lookup, searchName{base: "web.", schema: "v1", namespace: "shop", zone: "local."}},
		"web.v1.search.shop.k8s.example.com":             {lookup, searchName{base: "web.", schema: "v1", namespace: "shop", zone: "k8s.example.com."}},
		"web.v1.search.cluster.local":                    {foreign, searchName{}}, // search would be the namespace
		"web.search.search.cluster.local":                {lookup, searchName{base: "web.", namespace: "search", zone: "cluster.local."}},
		"web.v1.search.shop.xcluster.local":              {foreign, searchName{}},
		"web.v1.search.shop.cluster.example":             {foreign, searchName{}},
		"web.v1.search.shop.example.com":                 {foreign, searchName{}},
		"web.v1.search.shop.cluster.local.cluster.local": {foreign, searchName{}},
		"example.org": {foreign, searchName{}},

		// What is above search names exists.
		"":                             {apex, searchName{}},
		"com":                          {above, searchName{}},
		"example.com":                  {above, searchName{}},
		"k8s.example.com":              {above, searchName{}},
		"local":                        {above, searchName{}},
		"cluster.local":                {above, searchName{}},
		"shop.cluster.local":           {above, searchName{}},
		"search.cluster.local":         {above, searchName{}},
		"search.shop.cluster.local":    {above, shop},
		"v1.search.shop.cluster.local": {above, of("", "v1")},
		"org":                          {foreign, searchName{}},
		"xcom":                         {foreign, searchName{}},

		// Case.
		"WeB.V1.SEARCH.Shop.Cluster.LOCAL": {lookup, of("web.", "v1")},
		"WEB.V2.search.SHOP.cluster.local": {unknownSchema, of("", "v2")},

		// Namespaces.
		"web.v1.search.-shop.cluster.local":                           {foreign, searchName{}},
		"web.v1.search.shop-.cluster.local":                           {foreign, searchName{}},
		"web.v1.search._shop.cluster.local":                           {foreign, searchName{}},
		"web.v1.search.*.cluster.local":                               {foreign, searchName{}},
		`web.v1.search.sh\.op.cluster.local`:                          {foreign, searchName{}},
		`web.v1.search.sh\195\182p.cluster.local`:                     {foreign, searchName{}},
		"_shop.cluster.local":                                         {foreign, searchName{}},
		"web.v1.search.0.cluster.local":                               {lookup, searchName{base: "web.", schema: "v1", namespace: "0", zone: "cluster.local."}},
		"web.v1.search.a--b.cluster.local":                            {lookup, searchName{base: "web.", schema: "v1", namespace: "a--b", zone: "cluster.local."}},
		"web.v1.search." + strings.Repeat("n", 63) + ".cluster.local": {lookup, searchName{base: "web.", schema: "v1", namespace: strings.Repeat("n", 63), zone: "cluster.local."}},

		// Other labels than search, next to it.
		"web.v1.find.shop.cluster.local":      {foreign, searchName{}},
		"web.shop.cluster.local":              {foreign, searchName{}},
		"web.shop.svc.cluster.local":          {foreign, searchName{}},
		`web.v1\.search.shop.cluster.local`:   {foreign, searchName{}},
		`web.v1.\115earch.shop.cluster.local`: {foreign, searchName{}}, // no name that is unpacked is written so

		// Labels of any bytes.
		`a\.b.v1.search.shop.cluster.local`:             {lookup, of(`a\.b.`, "v1")},
		`a\\.v1.search.shop.cluster.local`:              {lookup, of(`a\\.`, "v1")},
		`web\.v1.search.shop.cluster.local`:             {lookup, of(`web\.v1.`, "")},
		`web.\.v1.search.shop.cluster.local`:            {lookup, of(`web.\.v1.`, "")},
		`\195\182.example.v1.search.shop.cluster.local`: {lookup, of(`\195\182.example.`, "v1")},
		`a\032b.v1.search.shop.cluster.local`:           {lookup, of(`a\032b.`, "v1")},
		`*.v1.search.shop.cluster.local`:                {lookup, of(`*.`, "v1")},

		// A search name's own search name.
		"web.v1.search.shop.cluster.local.ap.k8s.io.v1.search.shop.cluster.local": {foreign, searchName{}},
		"web.AP.k8s.io.search.shop.cluster.local":                                 {foreign, searchName{}},
		"ap.k8s.io.v1.search.shop.cluster.local":                                  {foreign, searchName{}},
		`web\.ap.k8s.io.v1.search.shop.cluster.local`:                             {lookup, of(`web\.ap.k8s.io.`, "v1")},
		"k8s.io.v1.search.shop.cluster.local":                                     {lookup, of("k8s.io.", "v1")},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "" {
				name += "."
			}
			n, what := testGrammar().parse(name + "Ap.K8s.io.")
			if what != want.meaning || n != want.name {
				t.Errorf("%s %+v, want %s %+v", meanings[what], n, meanings[want.meaning], want.name)
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

// TestNoUnversionedSchema takes the meaning of names without a version away.
func TestNoUnversionedSchema(t *testing.T) {
	g := testGrammar()
	g.schemas = g.schemas[1:]
	for name, want := range map[string]meaning{
		"web.v3.search.shop.local.ap.k8s.io.": lookup,
		"web.v1.search.shop.local.ap.k8s.io.": unknownSchema,
		"web.search.shop.local.ap.k8s.io.":    unknownSchema,
	} {
		if _, got := g.parse(name); got != want {
			t.Errorf("%s: %s, want %s", name, meanings[got], meanings[want])
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

func begins(labels, with []string) bool {
	return len(labels) >= len(with) && slices.Equal(labels[:len(with)], with)
}

// slowParse is grammar.parse by the letter of its description.
func slowParse(g *grammar, name string) (n searchName, what meaning) {
	left := reversed(name)[len(reversed(g.suffix)):]
	if len(left) == 0 {
		return n, apex
	}
	isAbove := false
	for _, zone := range g.zones {
		labels := reversed(zone)
		isAbove = isAbove || begins(labels, left)
		if begins(left, labels) && len(labels) > len(reversed(n.zone)) {
			n.zone = zone
		}
	}
	if n.zone == "" {
		if isAbove {
			return n, above
		}
		return n, foreign
	}
	left = left[len(reversed(n.zone)):]
	switch {
	case len(left) == 0:
		return searchName{}, above
	case !namespaceForm.MatchString(left[0]):
		return searchName{}, foreign
	case len(left) == 1:
		return searchName{}, above
	case left[1] != "search":
		return searchName{}, foreign
	}
	n.namespace, left = left[0], left[2:]
	if len(left) > 0 && schemaForm.MatchString(left[0]) {
		n.schema, left = left[0], left[1:]
	}
	if n.schema != "" && n.schema != "v1" && n.schema != "v3" {
		return n, unknownSchema
	}
	if len(left) == 0 {
		return n, above
	}
	if begins(left, reversed(g.suffix)) {
		return searchName{}, foreign
	}
	slices.Reverse(left)
	n.base = strings.Join(left, ".") + "."
	return n, lookup
}

// TestParseNameAgainstModel compares with the slow version, on names of labels that matter.
func TestParseNameAgainstModel(t *testing.T) {
	g := testGrammar()
	labels := []string{"web", "search", "v1", "v2", "v3", "shop", "cluster", "local", "example", "com", "k8s", "io", "ap", "Search", "V1", `a\.b`, "-x", "x_y", `\200`, "svc"}
	property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 2))
		seen := map[meaning]int{}
		for range 50_000 {
			name := "ap.k8s.io."
			if random.IntN(3) > 0 {
				name = []string{"shop.cluster.local.", "search.shop.local.", "v1.search.shop.k8s.example.com.", "local."}[random.IntN(4)] + name
			}
			for range random.IntN(6) {
				name = labels[random.IntN(len(labels))] + "." + name
			}
			n, what := g.parse(name)
			wantName, want := slowParse(g, name)
			if n != wantName || what != want {
				t.Fatalf("%s: %s %+v, want %s %+v", name, meanings[what], n, meanings[want], wantName)
			}
			seen[what]++
		}
		for what, text := range meanings {
			if seen[what] < 100 && property.Fixed() {
				t.Errorf("only %d names were %s", seen[what], text)
			}
		}
	})
}

// FuzzParseName parses names as they come from the wire, under the suffix.
func FuzzParseName(f *testing.F) {
	for _, name := range []string{
		"web.v1.search.shop.cluster.local.", "a.b.search.x.local.", `\.\\\200.v1.search.shop.cluster.local.`, ".", "local.", "v2.search.shop.k8s.example.com.",
	} {
		b := make([]byte, 255)
		n, err := dns.PackDomainName(name, b, 0, nil, false)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:n-1])
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		suffix := "\x02ap\x03k8s\x02io\x00"
		name, _, err := dns.UnpackDomainName(append(slices.Clone(wire), suffix...), 0)
		g := testGrammar()
		if err != nil || !g.contains(name) {
			t.Skip("not a name under the suffix")
		}
		n, what := g.parse(name)
		wantName, want := slowParse(g, name)
		if n != wantName || what != want {
			t.Fatalf("%q: %s %+v, want %s %+v", name, meanings[what], n, meanings[want], wantName)
		}
		if what != lookup {
			return
		}
		version := ""
		if n.schema != "" {
			version = n.schema + "."
		}
		if again := n.base + version + "search." + n.namespace + "." + n.zone + g.suffix; again != strings.ToLower(name) {
			t.Errorf("%q is taken apart into %q", name, again)
		}
		for _, suffix := range append(clusterFirst(n.namespace, n.zone), "") {
			if _, ok := dns.IsDomainName(n.base + suffix); !ok {
				t.Errorf("%q has the candidate %q", name, n.base+suffix)
			}
		}
	})
}
