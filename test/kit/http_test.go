package kit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestGet reads a page, and one that does not exist.
func TestGet(t *testing.T) {
	server := httptest.NewServer(http.StripPrefix("/a", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("text")) })))
	t.Cleanup(server.Close)
	if page, err := Get(server.Client(), server.URL+"/a"); err != nil || page != "text" {
		t.Errorf("page %q: %v", page, err)
	}
	if page, err := Get(server.Client(), server.URL+"/b"); err == nil {
		t.Errorf("page %q without an error", page)
	}
}
