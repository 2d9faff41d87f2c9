package explain

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestCommand(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(header) == "" {
			http.Error(w, "no header", http.StatusForbidden)
			return
		}
		w.Header().Set(header, "1")
		if r.URL.Query().Get("type") == "NOPE" {
			http.Error(w, `invalid type "NOPE"`, http.StatusBadRequest)
			return
		}
		_, _ = io.WriteString(w, r.URL.String())
	}))
	defer server.Close()
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer elsewhere.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	_, port, err := net.SplitHostPort(address)
	kit.Must(t, err)
	for _, tc := range []struct {
		args     string
		code     int
		out, err string // parts
	}{
		{"web.shop -client 10.244.1.7 -type SRV -search a.test,b.test -tcp -o json -ndots 2 -node node-a -zone zone-a -health " + address, 0,
			"/explain?client=10.244.1.7&name=web.shop&ndots=2&node=node-a&output=json&search=a.test%2Cb.test&transport=tcp&type=SRV&zone=zone-a", ""},
		{"web.shop -health :" + port, 0, "/explain?client=127.0.0.1&name=web.shop&output=text&type=A", ""},
		{"web.shop -type NOPE -health " + address, 1, "", `400 Bad Request: invalid type "NOPE"`},
		{"web.shop -health " + strings.TrimPrefix(elsewhere.URL, "http://"), 1, "", "is of another program, or of an older version: is the program running"},
		{"web.shop -health 127.0.0.1:1", 1, "", "connection refused: is the program running"},
		{"-help", 0, "-client address", ""},
		{"", 2, "", "the name is missing"},
		{"-client 10.244.1.7", 2, "", "the name is missing"},
		{"web.shop -client web-1", 2, "", `-client: "web-1" is not an address`},
		{"web.shop -health 8080", 2, "", `-health: "8080" is not an address with a port`},
		{"web.shop -o yaml", 2, "", `invalid -o "yaml": want text or json`},
		{"web.shop more", 2, "", `unexpected argument "more"`},
		{"web.shop -nope", 2, "", "flag provided but not defined: -nope"},
	} {
		var out, errs bytes.Buffer
		if code := command("nodecache", strings.Fields(tc.args), &out, &errs); code != tc.code || !strings.Contains(out.String(), tc.out) ||
			!strings.Contains(errs.String(), tc.err) || (tc.code != 0) != (errs.Len() > 0) {
			t.Errorf("%s: code %d, output %q, error %q; want %d, %q, %q", tc.args, code, &out, &errs, tc.code, tc.out, tc.err)
		}
	}
}
