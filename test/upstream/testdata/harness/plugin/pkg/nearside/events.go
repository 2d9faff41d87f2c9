package nearside

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/coredns/caddy"
)

// Event is a line of the file of events, which the runner reads after a test.
type Event struct {
	// Kind is "Corefile" if a program started with one, "exchange" if the test uses a program, "answer" or "stanza" if one was
	// checked, "refused" if CoreDNS's parser accepts a stanza that both programs refuse, "unsupported" with a reason.
	Kind    string
	Program string // that ran
	Name    string // of the answer or stanza
	Text    string // the stanza, the reason
	Err     string // the difference
}

var events struct {
	sync.Mutex
	used  string // program of the last exchange
	names map[string]int
}

// use records that the test uses a program: it sends it a query, or starts it to send queries.
func use(program string) {
	events.Lock()
	again := events.used == program
	events.used = program
	events.Unlock()
	if !again {
		record(Event{Kind: "exchange", Program: program})
	}
}

func record(e Event) {
	events.Lock()
	defer events.Unlock()
	line, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(os.Getenv(eventsVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	_, err = f.Write(append(line, '\n'))
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		panic(err)
	}
}

// Numbered returns a name with a number, if it is not the first of its kind.
func Numbered(name string) string {
	events.Lock()
	defer events.Unlock()
	if events.names == nil {
		events.names = map[string]int{}
	}
	events.names[name]++
	if n := events.names[name]; n > 1 {
		return fmt.Sprintf("%s #%d", name, n)
	}
	return name
}

// Answer records the comparison of an answer, and returns nil so that the test continues: the runner judges each answer. It
// returns the error if the test has used no program: the answer is that of a Go function then.
func Answer(name string, err error) error {
	events.Lock()
	program := events.used
	events.Unlock()
	if program == "" {
		return err
	}
	e := Event{Kind: "answer", Program: program, Name: Numbered(name)}
	if err != nil {
		e.Err = err.Error()
	}
	record(e)
	return nil
}

// Unsupported records why a test cannot use the public interface.
func Unsupported(reason string) error {
	record(Event{Kind: "unsupported", Text: reason})
	return fmt.Errorf("unsupported: %s", reason)
}

// texts are the inputs of controllers.
var texts sync.Map

// NewController is caddy.NewTestController. It remembers the input.
func NewController(serverType, input string) *caddy.Controller {
	c := caddy.NewTestController(serverType, input)
	texts.Store(c, input)
	return c
}

// Text returns the input of a controller.
func Text(c *caddy.Controller) string {
	text, _ := texts.Load(c)
	input, _ := text.(string)
	return input
}

var (
	pending sync.WaitGroup
	slots   = make(chan struct{}, 8) // most stanzas wait for a server that does not exist
)

// Parsed checks that the program accepts or refuses the input of a controller as CoreDNS's parser does: in the background, unless
// the input names a file, which the test may remove.
func Parsed(c *caddy.Controller, err error) {
	text := Text(c)
	if text == "" {
		return
	}
	name := Numbered("stanza")
	check := func() { Stanza(name, ".:0 {\n"+text+"\n}\n", text, err) }
	if slices.ContainsFunc(strings.Fields(text), isFile) {
		check()
		return
	}
	pending.Go(func() {
		slots <- struct{}{}
		defer func() { <-slots }()
		check()
	})
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// Wait waits for the checks of stanzas.
func Wait() { pending.Wait() }

// Stanza checks that the program starts with a Corefile, or refuses it, as CoreDNS's parser does with an error or nil. If the
// results differ, that of CoreDNS's program counts: it checks more at its start.
func Stanza(name, corefile, text string, parsed error, args ...string) {
	program := suitable(corefile)
	e := Event{Kind: "stanza", Program: program, Name: name, Text: text}
	switch refusal := refusalOf(program, corefile, args...); {
	case program == Control:
	case (refusal == "") == (parsed == nil):
		if refusal != "" {
			e.Err = unrelated(refusal, corefile, parsed.Error())
		}
	default:
		control := refusalOf(Control, corefile, args...)
		if (control == "") != (refusal == "") {
			e.Err = fmt.Sprintf("accepted %t, want %t: %s", refusal == "", parsed == nil, refusal)
		} else if refusal != "" {
			e.Kind, e.Err = "refused", unrelated(refusal, corefile, control)
		}
	}
	record(e)
}

// refusalOf returns the error with which a program refuses a Corefile, or "". The configuration of a cluster is not part of the
// stanza: an error about it comes after the stanza was accepted.
func refusalOf(program, corefile string, args ...string) string {
	i, err := StartProgram(program, corefile, args...)
	if err == nil {
		i.Stop()
		return ""
	}
	text := err.Error()
	if strings.Contains(text, "not in a cluster") || strings.Contains(text, "unable to load in-cluster configuration") {
		return ""
	}
	return text
}

var corefileLine = regexp.MustCompile(`\bCorefile:\d+`)

// unrelated returns an error if a refusal names neither a plugin nor a line of the Corefile, or if its reason is not the content of
// the Corefile. A missing file counts if CoreDNS's reason is a file, too.
func unrelated(refusal, corefile, other string) string {
	named := corefileLine.MatchString(refusal) || slices.ContainsFunc(directivesOf(corefile), func(d string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(d) + `\b`).MatchString(refusal)
	})
	if !named || strings.Contains(refusal, "Unknown directive") || strings.Contains(refusal, "address already in use") ||
		strings.Contains(refusal, "no such file") && !strings.Contains(other, "file") {
		return "refused for another reason: " + refusal
	}
	return ""
}
