package image

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// stage is a target of a Dockerfile, with the fields that set its image's config.
type stage struct {
	base, user, folder string
	entrypoint         string
	ports              []string
}

// stages returns those of a Dockerfile.
func stages(text string) map[string]stage {
	all, name := map[string]stage{}, ""
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		s := all[name]
		switch words[0] {
		case "FROM":
			name = words[len(words)-1]
			s = stage{base: words[len(words)-3]}
		case "USER":
			s.user = words[1]
		case "WORKDIR":
			s.folder = words[1]
		case "EXPOSE":
			s.ports = slices.Sorted(slices.Values(words[1:]))
		case "ENTRYPOINT":
			s.entrypoint = words[1]
		}
		all[name] = s
	}
	return all
}

// dockerfileProblems returns the differences of a Dockerfile's images from those of `make image`.
func dockerfileProblems(text string) (found []string) {
	all := stages(text)
	for _, e := range expectations {
		want := stage{"scratch", e.user, "/", `["/` + e.program + `"]`, e.ports}
		if got := all[e.program]; !reflect.DeepEqual(got, want) {
			found = append(found, fmt.Sprintf("%s: %+v, want %+v", e.program, got, want))
		}
		if capable := strings.Contains(text, "\nRUN setcap cap_net_bind_service=ep /out/"+e.program+"\n"); capable != (e.capability != "") {
			found = append(found, fmt.Sprintf("%s: setcap is %v", e.program, capable))
		}
	}
	want := all["nodecache"]
	want.base = "${DEBIAN_IMAGE}"
	if got := all["nodecache-iptables"]; !reflect.DeepEqual(got, want) {
		found = append(found, fmt.Sprintf("nodecache-iptables: %+v, want %+v", got, want))
	}
	return found
}

func TestDockerfile(t *testing.T) {
	text := kit.Read(t, filepath.Join(root, "deploy", "image", "Dockerfile"))
	for _, p := range dockerfileProblems(text) {
		t.Error(p)
	}
	for _, tc := range []struct{ name, old, replacement, want string }{
		{"user", "USER 65532:65532", "USER 0:0", "clusterdns: {"},
		{"base", "FROM scratch AS nodecache", "FROM alpine AS nodecache", "nodecache: {"},
		{"entry point", `ENTRYPOINT ["/nodecache"]`, `ENTRYPOINT ["/x"]`, "nodecache: {"},
		{"port", "53/udp 9153/tcp", "9153/tcp", "clusterdns: {"},
		{"capability", "RUN setcap", "RUN true", "clusterdns: setcap is false"},
		{"target", "AS nodecache-iptables", "AS x", "nodecache-iptables: {"},
	} {
		t.Run("can fail/"+tc.name, func(t *testing.T) {
			changed := strings.Replace(text, tc.old, tc.replacement, 1)
			if got := dockerfileProblems(changed); !slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, tc.want) }) {
				t.Errorf("problems %q, want %q", got, tc.want)
			}
		})
	}
}
