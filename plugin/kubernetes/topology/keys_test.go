package topology

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"go.yaml.in/yaml/v3"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// numbered returns keys k1, k2, ...
func numbered(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprint("k", i+1))
	}
	return all
}

func texts(keys []index.Symbol) []string {
	var all []string
	for _, k := range keys {
		all = append(all, k.String())
	}
	return all
}

// validAnnotations are texts and their keys.
var validAnnotations = []struct {
	name, text string
	want       []string
}{
	{"nothing", "", nil},
	{"spaces", " \t\n", nil},
	{"one key", hostname, []string{hostname}},
	{"comma-separated", hostname + "," + zone + ",*", []string{hostname, zone, "*"}},
	{"spaces about commas", " " + hostname + " ,\n\t" + zone + " , * \n", []string{hostname, zone, "*"}},
	{"any", "*", []string{"*"}},
	{"keys keep their case", "Rack", []string{"Rack"}},
	{"key without a prefix", "rack,row", []string{"rack", "row"}},
	{"digits", "123", []string{"123"}},
	{"longest key", strings.Repeat("a", 63), []string{strings.Repeat("a", 63)}},
	{"16 keys", strings.Join(numbered(16), ","), numbered(16)},
	{"15 keys and any", strings.Join(numbered(15), ",") + ",*", append(numbered(15), "*")},
	{"flow list", "[" + hostname + ", " + zone + "]", []string{hostname, zone}},
	{"flow list with any", `[rack, "*"]`, []string{"rack", "*"}},
	{"JSON", `["rack","*"]`, []string{"rack", "*"}},
	{"flow list over lines", "[\n  rack,\n  row,\n]\n", []string{"rack", "row"}},
	{"flow list of none", "[]", nil},
	{"block list", "- rack\n- row\n", []string{"rack", "row"}},
	{"block list with any", "- rack\n- '*'", []string{"rack", "*"}},
	{"block list, indented, with a comment", "  - rack # of steel\n  - row\n", []string{"rack", "row"}},
	{"block list with document markers", "---\n- rack\n...\n", []string{"rack"}},
	{"quoted digits", `["123"]`, []string{"123"}},
	{"a string by its tag", `[!!str 123]`, []string{"123"}},
}

// brokenAnnotations are texts and a part of their error.
var brokenAnnotations = []struct{ name, text, want string }{
	{"comma alone", ",", "key 1 is empty"},
	{"comma at the end", "rack,", "key 2 is empty"},
	{"two commas", "rack,,row", "key 2 is empty"},
	{"spaces between keys", "rack row", `invalid label key "rack row": name part must consist of`},
	{"lines without commas", "rack\nrow", `invalid label key "rack\nrow": name part must consist of`},
	{"two slashes", "a/b/c", `invalid label key "a/b/c": a valid label key must consist of`},
	{"upper case in the prefix", "Example.com/rack", `invalid label key "Example.com/rack": prefix part`},
	{"63 bytes are the most", strings.Repeat("a", 64), ": name part must be no more than 63"},
	{"a value", "rack=r1", `invalid label key "rack=r1"`},
	{"quotes outside of a list", `"rack"`, `invalid label key "\"rack\""`},
	{"twice", "rack,row,rack", `duplicate key "rack"`},
	{"any twice", "*,*", `"*" must be the last key`},
	{"any in the midst", "rack,*,row", `"*" must be the last key`},
	{"17 keys", strings.Join(numbered(17), ","), "17 keys: want 1 to 16"},
	{"16 keys and any", strings.Join(numbered(16), ",") + ",*", "17 keys: want 1 to 16"},
	{"list that does not end", "[rack", "not a YAML list: "},
	{"list and more", "[rack] row", "not a YAML list: "},
	{"any without quotes in a flow list", "[rack, *]", `; in YAML, * needs quotes: "*"`},
	{"any without quotes in a block list", "- rack\n- *", `; in YAML, * needs quotes: "*"`},
	{"dash without a space", "-rack", "want a YAML list, found a string"},
	{"document of nothing", "---\n", "want a YAML list, found null"},
	{"two documents", "- rack\n---\n- row\n", "not a YAML list: text after the list"},
	{"mapping in a document", "---\nrack: r1", "want a YAML list, found a mapping"},
	{"nested flow list", "[rack, [row]]", "line 1: want a label key, found a list"},
	{"nested block list", "- rack\n- - row\n", "line 2: want a label key, found a list"},
	{"mapping in a list", "- rack: r1", "line 1: want a label key, found a mapping"},
	{"number", "- rack\n- 5\n", "line 2: want a label key, found !!int 5: a string needs quotes"},
	{"fraction", "[1.5]", "line 1: want a label key, found !!float 1.5: a string needs quotes"},
	{"truth value", "[true]", "line 1: want a label key, found !!bool true: a string needs quotes"},
	{"null", "[rack, ~]", "line 1: want a label key, found null"},
	{"empty item", "- rack\n-\n", "line 2: want a label key, found null"},
	{"alias", "[&r rack, *r]", "line 1: want a label key, found an alias"},
	{"empty string in a list", `[""]`, "key 1 is empty"},
	{"twice in a list", "[rack, rack]", `duplicate key "rack"`},
	{"any in the midst of a list", "['*', rack]", `"*" must be the last key`},
	{"17 in a list", "[" + strings.Join(numbered(17), ", ") + "]", "17 keys: want 1 to 16"},
	{"spaces in a string of a list", `[" rack"]`, `invalid label key " rack"`},
	{"not UTF-8", "[\xff]", "not a YAML list: "},
	{"control character", "rack\x00", `invalid label key "rack\x00"`},
}

func TestParseKeys(t *testing.T) {
	for _, tt := range validAnnotations {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseKeys(tt.text)
			kit.Must(t, err)
			if !slices.Equal(texts(got), tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("got %q, want %q", texts(got), tt.want)
			}
		})
	}
}

func TestParseKeysRefuses(t *testing.T) {
	for _, tt := range brokenAnnotations {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseKeys(tt.text)
			if err == nil {
				t.Fatalf("accepted as %q", texts(got))
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q, want %q in it", err, tt.want)
			}
			if got != nil {
				t.Errorf("keys %q beside an error", texts(got))
			}
		})
	}
}

func TestKeys(t *testing.T) {
	tests := []struct {
		name string
		args []string
		err  string // a part of the error; empty if there is none
	}{
		{name: "one", args: []string{hostname}},
		{name: "several", args: []string{hostname, zone, "*"}},
		{name: "16", args: numbered(16)},
		{name: "none", err: "no keys: want 1 to 16"},
		{name: "17", args: numbered(17), err: "17 keys: want 1 to 16"},
		{name: "empty", args: []string{""}, err: "key 1 is empty"},
		{name: "comma", args: []string{"rack,row"}, err: `invalid label key "rack,row"`},
		{name: "YAML", args: []string{"[rack]"}, err: `invalid label key "[rack]"`},
		{name: "twice", args: []string{"rack", "rack"}, err: `duplicate key "rack"`},
		{name: "any in the midst", args: []string{"*", "rack"}, err: `"*" must be the last key`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Keys(tt.args)
			switch {
			case tt.err == "" && err != nil:
				t.Fatal(err)
			case tt.err == "" && !slices.Equal(texts(got), tt.args):
				t.Errorf("got %q", texts(got))
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("error %v, want %q in it", err, tt.err)
			}
		})
	}
}

// maxError is the maximum length of an error of ParseKeys in bytes: it is logged, and the annotation is up to 256 KiB
// of text from any user.
const maxError = 700

// checkParseKeys asserts the properties of the result for every text.
func checkParseKeys(t *testing.T, text string) {
	t.Helper()
	keys, err := ParseKeys(text)
	if err != nil {
		if keys != nil || len(err.Error()) > maxError || strings.ContainsAny(err.Error(), "\n\r\x00") {
			t.Fatalf("keys %q, and an error of %d bytes: %q", texts(keys), len(err.Error()), err)
		}
		return
	}
	if keys == nil {
		return
	}
	all := texts(keys)
	block, err := yaml.Marshal(all)
	kit.Must(t, err)
	flow, err := json.Marshal(all)
	kit.Must(t, err)
	for _, form := range []string{strings.Join(all, ","), string(block), string(flow)} {
		if again, err := ParseKeys(form); err != nil || !slices.Equal(again, keys) {
			t.Fatalf("%q gave %q; %q gives %q, %v", text, all, form, texts(again), err)
		}
	}
	if again, err := Keys(all); err != nil || !slices.Equal(again, keys) {
		t.Fatalf("as arguments %q give %q, %v", all, texts(again), err)
	}
	if len(keys) > 16 || slices.Contains(all[:len(all)-1], "*") {
		t.Fatalf("%q gave %d keys %q", text, len(keys), all)
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != len(keys) {
		t.Fatalf("%q gave a key twice: %q", text, all)
	}
}

func TestParseKeysErrorsAreShort(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, text := range map[string]string{
		"key": long + "!", "key of a list": "[" + long + "]", "alias": "[*" + long + "]", "number": "[" + strings.Repeat("1", 100_000) + "]",
		"lines": strings.Repeat("\n", 100_000) + "!", "commas": strings.Repeat(",", 100_000), "nested": strings.Repeat("[", 100_000), "tag": "[!" + long + " a]",
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseKeys(text); err == nil {
				t.Error("accepted")
			}
			checkParseKeys(t, text)
		})
	}
}

func FuzzParseKeys(f *testing.F) {
	for _, a := range validAnnotations {
		f.Add(a.text)
	}
	for _, a := range brokenAnnotations {
		f.Add(a.text)
	}
	f.Fuzz(checkParseKeys)
}
