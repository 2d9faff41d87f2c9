//go:build linux

package clients

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
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
		kit.Must(t, err)
		count, seed = number, os.Getenv("NEARSIDE_SEED")
	}
	requireFile(t, dnspython, "dnspython")
	n := start(t)
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			out := runMessages(t, n, s.address, seed, strconv.Itoa(count), questionFile(t, s))
			page.messages = append(page.messages, fmt.Sprintf("- %s, seed %s: %s", s.name, seed, out))
			t.Log(out)
			for _, kind := range []string{"known=", "unknown=", "broken=", "no-query=", "truncated=", "over-TCP="} {
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
	out := kit.Output(t, exec.CommandContext(t.Context(), "ip", args...))
	return strings.TrimSpace(out)
}

// questionFile writes the questions for messages.py: those of all clients, and others for the records of hundreds of objects.
func questionFile(t *testing.T, s server) string {
	t.Helper()
	type known struct {
		Name    string   `json:"name"`
		Type    string   `json:"type"`
		Status  string   `json:"status"`
		Records []string `json:"records"`
		Weight  int      `json:"weight"`
		TTL     [2]int   `json:"ttl"`
	}
	var file struct {
		Denial    [2]int  `json:"denial"`
		Questions []known `json:"questions"`
	}
	file.Denial = s.denial
	add := func(weight int, checks ...check) {
		for _, q := range checks {
			ttl := s.ttl
			switch q.qtype {
			case "ADDRESSES":
				continue
			case "TXT":
				if q.want.status == "NOERROR" {
					ttl = s.version
				}
			}
			file.Questions = append(file.Questions, known{q.name, q.qtype, q.want.status, append([]string{}, q.want.records...), weight, ttl})
		}
	}
	for _, q := range questions() {
		if len(q.want.records) > 10 {
			add(3, q) // these replies cost the most time
		} else {
			add(30, q)
		}
	}
	for i := range services {
		add(1, generate(i).checks()...)
	}
	for i := range endpoints {
		add(1, endpointChecks(i)...)
	}
	page.questions = len(file.Questions)
	text, err := json.Marshal(file)
	kit.Must(t, err)
	return kit.File(t, "questions.json", string(text))
}
