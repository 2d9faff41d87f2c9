package apiserver

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestAnAPIServerWithTooManyRequestsIsTheLastError: client-go would repeat a request by Retry-After itself, and return no error meanwhile.
func TestAnAPIServerWithTooManyRequestsIsTheLastError(t *testing.T) {
	log := kit.Logged(t)
	f := startFake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	c := new(clock)
	s, ix := f.follow(t, fast, time.Hour, func(s *Source) {
		for _, r := range s.resources {
			r.health.now = c.now
		}
	})
	r := theResource(s, source.Services)
	kit.Eventually(t, "an error", func() bool { _, err := r.health.away(); return err != nil })
	kit.Eventually(t, "namespaces", func() bool { return ix.HasNamespace("shop") })
	c.advance(lostAfter + time.Second)
	r.check(t.Context(), new(watching))
	if got := log.Lines("[WARNING]", "services: no watch on the API server", "last error: the server has received too many requests"); len(got) != 1 {
		t.Errorf("logged %q, want one line with the error", log.Lines("services"))
	}
}

// TestAProxyThatDropsBookmarksDoesNotKeepAnswersAway: without the bookmark that ends a streamed list, the objects are listed, also while
// events of other objects continue.
func TestAProxyThatDropsBookmarksDoesNotKeepAnswersAway(t *testing.T) {
	for _, event := range []string{"ADDED", "MODIFIED"} { // before more of ADDED
		t.Run(event, func(t *testing.T) {
			log := kit.Logged(t)
			f := startFake(t, func(w http.ResponseWriter, r *http.Request) {
				web := fmt.Sprintf(fakeService, "web")
				switch verbOf(r) {
				case "list":
					_, _ = fmt.Fprintf(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[%s]}`, web)
				case "watch":
					send(w, "ADDED", fmt.Sprintf(fakeService, "later"))
					<-r.Context().Done()
				default:
					send(w, "ADDED", web)
					send(w, event, web)
					for event == "MODIFIED" && r.Context().Err() == nil {
						send(w, "ADDED", fmt.Sprintf(fakeService, "new"))
						time.Sleep(time.Millisecond)
					}
					<-r.Context().Done()
				}
			})
			s, ix := f.follow(t, fast, time.Millisecond, func(s *Source) { theResource(s, source.Services).listTimeout = 20 * time.Millisecond })
			kit.Eventually(t, "synced", func() bool { return synced(s) })
			kit.Eventually(t, "an event after the list", func() bool { return hasIP(ix, "later", "10.96.0.1") })
			if got := log.Lines("[WARNING]", "services: the streamed list", "does not end"); len(got) != 1 {
				t.Errorf("logged %q, want one line", got)
			}
			if st := status(s, source.Services); st.Frozen {
				t.Error("the resource is reported as frozen")
			}
			if n := f.count(source.Namespaces, "list"); n != 0 {
				t.Errorf("%d lists of namespaces, whose streamed list ends", n)
			}
		})
	}
}
