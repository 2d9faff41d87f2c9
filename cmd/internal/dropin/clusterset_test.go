package dropin

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy/caddyfile"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/daemon"
	"github.com/nearside-dns/nearside/cmd/internal/kubednsconfig"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestZoneNames has values of -clusterset-zone and their normal form.
func TestZoneNames(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"clusterset.local":                  "clusterset.local",
		"ClusterSet.Local., mesh.example":   "clusterset.local,mesh.example",
		"clusterset":                        "clusterset",
		"in-addr.example,clusterset.1arpa.": "in-addr.example,clusterset.1arpa",
	} {
		z := zoneNames{"before"}
		if err := z.Set(text); err != nil || z.String() != want {
			t.Errorf("%q is %q, error %v, want %q", text, z.String(), err, want)
		}
	}
}

// FuzzZoneNames sets any value: it is an error of one line, or a list of names that is the same when it is set again.
func FuzzZoneNames(f *testing.F) {
	for _, text := range []string{"clusterset.local", "A.Example., b.example", ".", "x.arpa", "a..b", "\u212a8s.local", "a\\.b", Zone} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var once, twice zoneNames
		if err := once.Set(text); err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: error %q", text, err)
			}
			return
		}
		if err := twice.Set(once.String()); err != nil || !slices.Equal(once, twice) {
			t.Errorf("%q is %q and then %q, error %v", text, once, twice, err)
		}
		for _, zone := range once {
			_, ok := dns.IsDomainName(zone)
			if !ok || zone+"." != dns.CanonicalName(zone) || dns.IsSubDomain("arpa.", zone+".") || zone+"." == Zone {
				t.Errorf("%q has the zone %q", text, zone)
			}
		}
	})
}

// rendered renders a Corefile and returns it as it is written, and the messages.
func rendered(t *testing.T, v values, text string) (daemon.Corefile, messages) {
	t.Helper()
	var logged messages
	v.report = logged.add
	got, err := v.render(daemon.Corefile{Name: "f", Text: []byte(text)})
	kit.Must(t, err)
	return got, logged
}

// TestClustersetServed has Corefiles with a block for the zone: the flag changes nothing.
func TestClustersetServed(t *testing.T) {
	const model = "cluster.local {\n    forward . 10.96.0.11\n}\n"
	for name, tc := range map[string]struct{ text, want string }{
		"elsewhere":          {"clusterset.local {\n    forward . 192.0.2.1\n}\n" + model, "f:2"},
		"after the model":    {model + "clusterset.local:53 {\n    forward . 10.96.0.11\n}\n", "f:5"},
		"one of several":     {model + "dns://ClusterSet.Local. a.example {\n    log\n}\n", "f:5"},
		"without a model":    {"clusterset.local {\n    log\n}\n", "f:2"},
		"nothing in it":      {model + "clusterset.local {\n}\n", "f"},
		"on another address": {model + "clusterset.local {\n    bind 192.0.2.1\n}\n", "f:5"},
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			without, logged := rendered(t, v, tc.text)
			v.clusterset = zoneNames{"clusterset.local"}
			with, loggedWith := rendered(t, v, tc.text)
			want := append(logged, message{info, "no block for clusterset.local of -clusterset-zone is added, it is a zone of " + tc.want + " already"})
			if shown(with) != shown(without) || !slices.Equal(loggedWith, want) {
				t.Errorf("messages %v, rendered was\n%s", loggedWith, shown(with))
			}
		})
	}
}

// TestClustersetCopy has the directives that an added block copies, and those that it does not.
func TestClustersetCopy(t *testing.T) {
	imported := filepath.Join(t.TempDir(), "imported")
	kit.Write(t, imported, "cache {\n    denial 9984 5\n}\nforward . 10.96.0.11\nlog a\n")
	for name, tc := range map[string]struct {
		text, want string
		imported   bool // the forward directive
	}{
		"imported file":               {"cluster.local {\n    errors\n    import " + imported + "\n}\n", "    errors\n    cache {\n        denial 9984 5\n    }\n    forward . 10.96.0.11\n    log a\n", true},
		"the same line of two files":  {"\ncluster.local {\n    import " + imported + "\n\n    log b\n    errors\n}\n", "    errors\n    cache {\n        denial 9984 5\n    }\n    forward . 10.96.0.11\n    log a\n    log b\n", true},
		"the word in another":         {"cluster.local {\n    hosts forward {\n        192.0.2.1 a\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n}\n", "    hosts forward {\n        192.0.2.1 a\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
		"import in a directive":       {"(s) {\n    denial 9984 5\n}\ncluster.local {\n    cache {\n        import s\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n    }\n}\n", "    cache {\n        denial 9984 5\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n    }\n", false},
		"of the process":              {"cluster.local {\n    health :8080\n    pprof\n    ready\n    reload\n    nodelocal 192.0.2.1 {\n        setup none\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n}\n", "    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
		"the stanza of the zone":      {"cluster.local {\n    forward a.cluster.local 192.0.2.1\n    forward local 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n    forward . 192.0.2.1\n}\n", "    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
		"sessions":                    {"cluster.local {\n    forward . 10.96.0.11 {\n        force_tcp\n        coherent\n    }\n}\n", "    forward . 10.96.0.11 {\n        force_tcp\n        coherent\n    }\n", false},
		"with a zone of addresses":    {"10.in-addr.arpa cluster.local {\n    forward . 10.96.0.11 {\n        prefer_udp\n    }\n}\n", "    forward . 10.96.0.11 {\n        prefer_udp\n    }\n", false},
		"the first of several":        {"a.local {\n    forward . 10.96.0.11 192.0.2.1\n}\nb.local {\n    log\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n}\nc.local {\n    forward . 10.96.0.11\n}\n", "    log\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
		"a zone by its name":          {"cluster.local {\n    log cluster.local\n    log Cluster.Local. {\n        cluster.local\n    }\n    forward cluster.local 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n}\n", "    log clusterset.local\n    log clusterset.local {\n        cluster.local\n    }\n    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
		"a brace on the block's line": {"cluster.local { forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n}\n", "    forward . 10.96.0.11 {\n        prefer_udp\n        caller another\n    }\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := example(t, "")
			v.node = "node-a"
			without, _ := rendered(t, v, tc.text)
			v.clusterset = zoneNames{"clusterset.local"}
			with, _ := rendered(t, v, tc.text)
			if want := string(without.Text) + "clusterset.local:53 {\n" + tc.want + "}\n"; string(with.Text) != want {
				t.Errorf("rendered was\n%s\nwant\n%s", with.Text, want)
			}
			forward := bytes.Count(with.Text[:bytes.LastIndex(with.Text, []byte(" forward ."))], []byte("\n")) + 1
			added := with.Facts.Forward
			for line := range without.Facts.Forward {
				delete(added, line)
			}
			if d, ok := added[forward]; len(added) > 1 || ok == tc.imported || !ok && len(added) > 0 || ok && (!d.TCP || d.Caller == strings.Contains(tc.want, "caller")) {
				t.Errorf("defaults of the added block %+v, its forward directive is in line %d", added, forward)
			}
		})
	}
}

// TestClustersetPort has DNS on another port, which blocks without a port use too.
func TestClustersetPort(t *testing.T) {
	const stanza = " {\n    forward . 10.96.0.11 {\n        prefer_udp\n    }\n}\n"
	v := example(t, "")
	v.port, v.clusterset = "5353", zoneNames{"clusterset.local", "mesh.example"}
	const text = "a.local:53" + stanza + "cluster.local" + stanza + "b.local:5353" + stanza + "clusterset.local:53" + stanza
	if got, logged := rendered(t, v, text); string(got.Text) != text+"clusterset.local:5353"+stanza+"mesh.example:5353"+stanza || len(logged) != 2 {
		t.Errorf("messages %v, rendered was\n%s", logged, got.Text)
	}
}

// TestClustersetReload adds the zone to the Corefile, and removes it. It is not valid as a stub domain of the ConfigMap.
func TestClustersetReload(t *testing.T) {
	const model = "cluster.local {\n    forward . 10.96.0.11\n}\n"
	base, directory := filepath.Join(t.TempDir(), "base"), t.TempDir()
	n := node(t, map[string]string{"KUBE_DNS_SERVICE_HOST": "10.96.0.11"},
		"-basecorefile", base, "-kubednscm", directory, "-clusterset-zone", "clusterset.local")
	errors := 0
	n.setupError = func(string) { errors++ }
	check := func(what, want string, wantMessages, wantErrors int) {
		t.Helper()
		got, err := n.Source(filepath.Join(directory, "out"), reader)
		if err != nil || !strings.Contains(string(got.Text), want) || strings.Count(string(got.Text), "clusterset.local") != 1 {
			t.Errorf("%s: error %v, rendered was\n%s", what, err, got.Text)
		}
		if len(n.logged) != wantMessages || errors != wantErrors {
			t.Errorf("%s: messages %v, %d errors", what, n.logged, errors)
		}
	}
	kit.Write(t, base, model)
	check("at first", "clusterset.local:53 {\n    forward . 10.96.0.11\n}\n", 1, 0)
	kit.Write(t, base, model+"clusterset.local {\n    forward . 192.0.2.1\n}\n")
	check("written", "clusterset.local {\n    forward . 192.0.2.1\n}\n", 1, 0)
	kit.Write(t, base, model)
	check("again", "clusterset.local:53 {\n    forward . 10.96.0.11\n}\n", 1, 0)
	kit.Write(t, filepath.Join(directory, kubednsconfig.StubDomains), `{"clusterset.local": ["192.0.2.1"]}`)
	check("stub domain", "clusterset.local:53 {\n    forward . 10.96.0.11\n}\n", 1, 1)
	if want := "stub domain clusterset.local is a zone of -clusterset-zone already"; n.kubeDNSReason != want {
		t.Errorf("reason %q, want %q", n.kubeDNSReason, want)
	}
	kit.Write(t, base, "cluster.local {\n    forward . 192.0.2.1\n}\n")
	if _, err := n.Source("", reader); err == nil || !strings.Contains(err.Error(), "-clusterset-zone") {
		t.Errorf("error %v", err)
	}
}

// shape returns the words of directives by lines, as plugins read them.
func shape(tokens []caddyfile.Token) (lines [][]string) {
	for d := caddyfile.NewDispenserTokens("", tokens); d.Next(); {
		line := []string{d.Val()}
		for d.NextArg() {
			line = append(line, d.Val())
		}
		lines = append(lines, line)
	}
	return lines
}

// mayParse parses a Corefile of the fuzzer, and skips those that depend on files and variables of this machine.
func mayParse(t *testing.T, text string) []caddyfile.ServerBlock {
	t.Helper()
	if strings.Contains(text, "import") || strings.Contains(text, "{$") || strings.Contains(text, "{%") {
		t.Skip("files and the environment of this machine")
	}
	blocks, err := caddyfile.Parse("f", strings.NewReader(text), nil)
	if err != nil {
		t.Skip("not a Corefile")
	}
	return blocks
}

// FuzzFormat formats the tokens of directives: the parser reads the same tokens.
func FuzzFormat(f *testing.F) {
	for _, text := range []string{"log . \"a b\" c", "cache {\n success 1 2\n}\nlog", "x \"\" \"#\" a#b \"\n\" \\\"a \"\\\"\"", "a \"\\\\\"\nb {\n {\n }\n}", "a\r\nb \"\r\" \u00a0c", "a { b }\na {\n} c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		blocks := mayParse(t, ". {\n"+text+"\n}\n")
		for name, tokens := range blocks[0].Tokens {
			lines := strings.Join(format(tokens), "\n")
			again, err := caddyfile.Parse("f", strings.NewReader(". {\n"+lines+"\n}\n"), nil)
			if err != nil || len(again) != 1 || len(again[0].Tokens) != 1 {
				t.Fatalf("%q is written %q, which is %+v, error %v", text, lines, again, err)
			}
			if got, want := shape(again[0].Tokens[name]), shape(tokens); !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%q is written %q, which is %q, want %q", text, lines, got, want)
			}
		}
	})
}

// FuzzClusterset renders any text with and without the flag. Blocks are added if the zone has none, each with the directives
// of another block. Its corpus has unpaired braces, which moved the begin of added blocks, and a zone whose name is the
// address of the server, which was replaced as well.
func FuzzClusterset(f *testing.F) {
	for _, name := range []string{"stock", "custom", "clusterset", "caller", "cluster"} {
		f.Add(strings.ReplaceAll(strings.ReplaceAll(kit.Read(f, filepath.Join("testdata/render", name+".base")), "(", "of"), "import", "log")) // blocks instead of snippets
	}
	f.Add("cluster.local {\n forward . 10.96.0.11\n}\nclusterset.local {\n}\n")
	f.Add("cluster.local\nforward . 10.96.0.11\n")
	f.Fuzz(func(t *testing.T, text string) {
		mayParse(t, text)
		v := example(t, "")
		v.node = "node-a"
		before, err := v.render(daemon.Corefile{Name: "f", Text: []byte(text)})
		if err != nil {
			t.Skip("wrong without the flag")
		}
		v.clusterset = zoneNames{"clusterset.local"}
		after, err := v.render(daemon.Corefile{Name: "f", Text: []byte(text)})
		if err != nil {
			if text := err.Error(); !strings.Contains(text, "-clusterset-zone") && !strings.Contains(text, "without braces") {
				t.Errorf("%q: error %v", text, err)
			}
			return
		}
		have := mayParse(t, string(before.Text))
		got, err := caddyfile.Parse("f", bytes.NewReader(after.Text), nil)
		if err != nil {
			t.Fatalf("%q became %q, which does not parse: %v", text, after.Text, err)
		}
		if !bytes.HasPrefix(after.Text, bytes.TrimSuffix(before.Text, []byte("\n"))) {
			t.Errorf("%q became\n%s", text, after.Text)
		}
		if _, served := v.blockOf(have, "clusterset.local", "f"); served != (len(got) == len(have)) {
			t.Fatalf("%q has the zone is %v, and became\n%s", text, served, after.Text)
		}
		for _, b := range got[len(have):] {
			if !slices.Equal(b.Keys, []string{"clusterset.local:53"}) || !slices.ContainsFunc(have, func(m caddyfile.ServerBlock) bool { return isCopy(b, m) }) {
				t.Errorf("%q became\n%s", text, after.Text)
			}
		}
	})
}

// isCopy reports whether a block has the copied directives of a model, and forwards everything to cluster DNS.
func isCopy(b, m caddyfile.ServerBlock) bool {
	for name, tokens := range m.Tokens {
		if name == "forward" || slices.Contains(notCopied, name) {
			continue
		}
		same := func(got, want []string) bool {
			return slices.EqualFunc(got, want, func(g, w string) bool { return g == w || g == "clusterset.local" })
		}
		if !slices.EqualFunc(shape(b.Tokens[name]), shape(tokens), same) {
			return false
		}
	}
	for name := range b.Tokens {
		if m.Tokens[name] == nil || slices.Contains(notCopied, name) {
			return false
		}
	}
	to := stanzaOf(b.Tokens["forward"]).to
	return b.Tokens["forward"][1].Text == "." && len(to) > 0 && !slices.ContainsFunc(to, func(server string) bool { return !strings.Contains(server, "10.96.0.11") })
}
