package nearside

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/coredns/caddy"
)

// Event is a line of the file of events, which the runner reads after a test.
type Event struct {
	Kind string // "program": one started; "answer", "stanza": one was checked; "unsupported": a reason
	Name string // of the answer or stanza
	Text string // the program, the stanza, the reason
	Err  string // the difference
}

var events struct {
	sync.Mutex
	programs int
	names    map[string]int
}

func record(e Event) {
	events.Lock()
	defer events.Unlock()
	if e.Kind == "program" {
		events.programs++
	}
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
// returns the error if no program has run: the answer is that of a Go function then.
func Answer(name string, err error) error {
	events.Lock()
	programs := events.programs
	events.Unlock()
	if programs == 0 {
		return err
	}
	e := Event{Kind: "answer", Name: Numbered(name)}
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

// Parsed checks in the background that the program accepts or refuses the input of a controller as CoreDNS's parser does.
func Parsed(c *caddy.Controller, err error) {
	text := Text(c)
	if text == "" {
		return
	}
	name := Numbered("stanza")
	pending.Go(func() {
		slots <- struct{}{}
		defer func() { <-slots }()
		Stanza(name, ".:0 {\n"+text+"\n}\n", text, err == nil)
	})
}

// Wait waits for the checks of stanzas.
func Wait() { pending.Wait() }

// Stanza checks that the program starts with a Corefile, or refuses it. If the result is another than that of CoreDNS's
// parser, that of CoreDNS's program counts: it checks more at its start.
func Stanza(name, corefile, text string, want bool, args ...string) {
	program := os.Getenv(programVariable)
	got, err := accepts(suitable(corefile), corefile, args...)
	e := Event{Kind: "stanza", Name: name, Text: text}
	if got != want && program != Control {
		if control, _ := accepts(Control, corefile, args...); control != got {
			e.Err = fmt.Sprintf("accepted %t, want %t: %s", got, want, err)
		}
	}
	record(e)
}

// accepts reports whether a program starts with a Corefile. The configuration of a cluster is not part of the stanza: an
// error about it comes after the stanza was accepted.
func accepts(program, corefile string, args ...string) (bool, string) {
	i, err := StartProgram(program, corefile, args...)
	if err == nil {
		i.Stop()
		return true, ""
	}
	text := err.Error()
	return strings.Contains(text, "not in a cluster") || strings.Contains(text, "unable to load in-cluster configuration"), text
}
