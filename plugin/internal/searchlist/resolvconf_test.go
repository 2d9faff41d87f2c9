package searchlist

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// resolvConfs are resolv.conf files with their search lists. error is the prefix of the error after the file name.
var resolvConfs = map[string]struct {
	text  string
	want  []string
	error string
}{
	"empty":                  {text: ""},
	"no search":              {text: "nameserver 10.0.0.2\noptions ndots:5\n"},
	"search":                 {text: "search corp.example example\nnameserver 10.0.0.2\n", want: []string{"corp.example", "example"}},
	"final dots":             {text: "search corp.example. example.. .\n", want: []string{"corp.example", "example."}},
	"root alone":             {text: "search .\n"},
	"the last line counts":   {text: "search a.example\nsearch b.example c.example\n", want: []string{"b.example", "c.example"}},
	"the last line is empty": {text: "search a.example\nsearch\n"},
	"blanks":                 {text: "  search\ta.example \t b.example\r\n", want: []string{"a.example", "b.example"}},
	"comments":               {text: "#search a.example\n;search b.example\n # search c.example\n"},
	"comment at the end":     {text: "search a.example # b\n", want: []string{"a.example", "#", "b"}},
	"domain":                 {text: "domain a.example\n"},
	"upper case":             {text: "SEARCH a.example\nsearch B.Example\n", want: []string{"B.Example"}},
	"a longer word":          {text: "searches a.example\n"},
	"no final line feed":     {text: "search a.example", want: []string{"a.example"}},
	"nameserver, no address": {text: "search a.example\n\nnameserver # none\nnameserver\n", error: ":4: nameserver without an address"},
}

func TestReadResolvConf(t *testing.T) {
	for name, tc := range resolvConfs {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "resolv.conf")
			write(t, file, tc.text)
			got, err := ReadResolvConf(file)
			if !slices.Equal(got, tc.want) || (err == nil) != (tc.error == "") || err != nil && !strings.HasPrefix(err.Error(), file+tc.error) {
				t.Errorf("%q, error %v; want %q, %q", got, err, tc.want, tc.error)
			}
		})
	}
}

func TestReadResolvConfErrors(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "resolv.conf")
	if _, err := ReadResolvConf(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: error %v", err)
	}
	if _, err := ReadResolvConf(folder); err == nil {
		t.Error("no error for a folder")
	}
	largest := strings.Repeat("#", maxFile-len("\nsearch a.example")-1) + "\nsearch a.example"
	write(t, file, largest)
	if got, err := ReadResolvConf(file); err != nil || !slices.Equal(got, []string{"a.example"}) {
		t.Errorf("the largest file: %q, error %v", got, err)
	}
	write(t, file, largest+" ")
	if _, err := ReadResolvConf(file); err == nil {
		t.Error("no error for a file of 10 MiB")
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	kit.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

func FuzzResolvConf(f *testing.F) {
	for _, tc := range resolvConfs {
		f.Add(tc.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		search, line, err := parseResolvConf(text)
		if lines := 1 + strings.Count(text, "\n"); line < 1 || line > lines || err == nil && line != lines {
			t.Errorf("line %d of %d", line, lines)
		}
		for _, s := range search {
			if len(strings.Fields(s)) > 1 || !strings.Contains(text, s) {
				t.Errorf("%q is not an entry", s)
			}
		}
	})
}
