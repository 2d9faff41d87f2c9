package inside

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/netns"
)

// answering is a server for all names whose answers name the server and the client. rest are further lines of its block.
func answering(who, rest string) string {
	return fmt.Sprintf(".:53 {\n\ttemplate IN TXT . {\n\t\tanswer \"{{ .Name }} 5 IN TXT %s {{ .Remote }}\"\n\t}\n%s}\n", who, rest)
}

// TestFallback sends queries from a pod and from the node, while nodecache runs and after it was killed: then cluster
// DNS answers, by the rules alone, and receives the pod's own address.
func TestFallback(t *testing.T) {
	needsMachine(t)
	bed := netns.New(t)
	serve := func(n *netns.Namespace, corefile string) *netns.Process {
		path := filepath.Join(t.TempDir(), "Corefile")
		kit.Must(t, os.WriteFile(path, []byte(corefile), 0o600))
		return n.Start(t, "nodecache", "-conf", path)
	}
	serve(bed.Upstream, answering("upstream", ""))
	local := serve(bed.Node, answering("local", fmt.Sprintf(
		"\tnodelocal 169.254.20.10 fd00::a {\n\t\tfallback %v %v\n\t}\n\tbind 169.254.20.10 fd00::a\n", bed.Upstream.IPv4, bed.Upstream.IPv6)))

	pod := bed.Pod[0]
	answersCome(t, pod, []string{"local", pod.IPv4.String()}, []string{"local", pod.IPv6.String()})
	answersCome(t, bed.Node, []string{"local", addresses[0].String()}, []string{"local", addresses[1].String()})
	local.Kill(t)
	answersCome(t, pod, []string{"upstream", pod.IPv4.String()}, []string{"upstream", pod.IPv6.String()})
	answersCome(t, bed.Node, []string{"upstream", bed.Node.IPv4.String()}, []string{"upstream", bed.Node.IPv6.String()})
}

// answersCome waits until each address returns the wanted answer, over UDP and over TCP.
func answersCome(t *testing.T, from *netns.Namespace, want ...[]string) {
	t.Helper()
	for i, a := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			var got []string
			var err error
			what := func() string { return fmt.Sprintf("%v asked over %s by %s: %q, %v", a, network, from.Name, got, err) }
			eventually(t, what, func() bool {
				got, err = from.Ask(network, a, "host.example.", time.Second)
				return err == nil && slices.Equal(got, want[i])
			})
		}
	}
}
