//go:build linux

package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// messagesVariable is the environment variable with the number of random messages for each server.
const messagesVariable = "NEARSIDE_MESSAGES"

// fewMessages is their number without it; the seed is the same then.
const fewMessages = 4000

// TestRandomMessages sends random messages that dnspython packs, and checks the replies as dnspython parses them.
func TestRandomMessages(t *testing.T) {
	count, seed := fewMessages, "1"
	if text := os.Getenv(messagesVariable); text != "" {
		number, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		count, seed = number, os.Getenv("NEARSIDE_SEED")
	}
	requireFile(t, dnspython, "dnspython")
	n := start(t)
	path := questionFile(t)
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			out := runMessages(t, n, s.address, seed, strconv.Itoa(count), path)
			page.messages = append(page.messages, fmt.Sprintf("- %s, seed %s: %s", s.name, seed, out))
			t.Log(out)
			for _, kind := range []string{"known=", "unknown=", "broken=", "truncated=", "over-TCP="} {
				if !strings.Contains(out, kind) {
					t.Errorf("no messages of kind %s in %s", kind, out)
				}
			}
		})
	}
}

// runMessages runs messages.py, without a limit of time: a million messages take minutes.
func runMessages(t *testing.T, n *netns.Namespace, args ...string) string {
	t.Helper()
	args = append([]string{"netns", "exec", n.Name, python, "testdata/messages.py"}, args...)
	out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("messages.py: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}

// questionFile writes the questions for messages.py.
func questionFile(t *testing.T) string {
	t.Helper()
	type known struct {
		Name    string   `json:"name"`
		Type    string   `json:"type"`
		Status  string   `json:"status"`
		Records []string `json:"records"`
	}
	var all []known
	for _, q := range questions() {
		if q.qtype != "ADDRESSES" {
			all = append(all, known{q.name, q.qtype, q.want.status, append([]string{}, q.want.records...)})
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "questions.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
