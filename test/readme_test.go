// Package test holds the tests that use the repository as its users do: its documents and its layout.
package test

import (
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/netns"
)

const root = ".."

func TestMain(m *testing.M) { kubeapi.Main(m) }

// block is a fenced block of a document.
type block struct {
	language string
	line     int // of its first line of text
	text     string
}

// blocks returns the fenced blocks of a Markdown text, also those of lists, which are indented.
func blocks(markdown string) (all []block) {
	var current *block
	indent := ""
	for i, line := range strings.Split(markdown, "\n") {
		text := strings.TrimLeft(line, " ")
		fence := strings.HasPrefix(text, "```") || strings.HasPrefix(text, "~~~")
		switch {
		case fence && current == nil:
			indent = line[:len(line)-len(text)]
			current = &block{language: strings.TrimSpace(text[3:]), line: i + 2}
		case fence:
			all = append(all, *current)
			current = nil
		case current != nil:
			current.text += strings.TrimPrefix(line, indent) + "\n"
		}
	}
	return all
}

// documents returns the READMEs of the repository.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "README.md" {
			paths = append(paths, path)
		}
		return err
	})
	kit.Must(t, err)
	return paths
}

// TestCorefilesOfDocuments starts a server with every Corefile in a document, and with Corefile.example.
func TestCorefilesOfDocuments(t *testing.T) {
	program := daemon.ProgramWithoutRace(t, "clusterdns")
	api := kubeapi.New(t)
	shown := map[string]string{"Corefile.example": kit.Read(t, filepath.Join(root, "Corefile.example"))}
	for _, path := range documents(t) {
		for _, b := range blocks(kit.Read(t, path)) {
			if b.language == "corefile" {
				shown[fmt.Sprintf("%s:%d", strings.TrimPrefix(path, root+"/"), b.line)] = b.text
			}
		}
	}
	if len(shown) < 5 {
		t.Fatalf("only %d Corefiles were found", len(shown))
	}
	node := daemon.ProgramWithoutRace(t, "nodecache")
	for name, corefile := range shown {
		t.Run(name, func(t *testing.T) {
			switch {
			case strings.HasPrefix(name, "plugin/nodelocal/"):
				startOnNode(t, node, corefile)
			case strings.Contains(corefile, "__PILLAR__"):
				startInTemplate(t, node, corefile)
			default:
				daemon.Start(t, program, here(t, corefile, api.URL()))
			}
		})
	}
}

// startOnNode starts nodecache on a node of its own, with an unchanged Corefile, and queries it.
func startOnNode(t *testing.T, program, corefile string) {
	t.Helper()
	node := netns.New(t).Node
	node.Etc(t, "resolv.conf", "nameserver 192.0.2.53\n")
	path := kit.File(t, "Corefile", corefile)
	p := node.StartWith(t, []string{"POD_IP=" + node.IPv4.String()}, program, "-conf", path)
	server := regexp.MustCompile(`(?m)^    bind (\S+)`).FindStringSubmatch(corefile)[1]
	for end := time.Now().Add(daemonEnds); ; time.Sleep(50 * time.Millisecond) {
		// Self-queries need no upstream.
		out, _ := node.Try("dig", "+tries=1", "+time=1", "+noall", "+answer", "@"+server, "-q", "1.nodelocal-health.", "TXT", "-q", "1.nodelocal-health.cluster.local.", "TXT")
		if strings.Contains(out, "nearside") {
			return
		}
		select {
		case <-p.Ended():
			t.Fatal("nodecache has ended")
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("no answer from %s:\n%s", server, out)
		}
	}
}

// startInTemplate starts nodecache on a node, with the stock template of node-local-dns and an added block for another
// zone, and queries a name of the zone. Cluster DNS must receive it like names of the cluster.
func startInTemplate(t *testing.T, program, added string) {
	t.Helper()
	zone, _, _ := strings.Cut(added, ":")
	startStock(t, program, stockTemplate(t)+added).await(t, zone+".", ofCluster)
}

// TestBrokenCorefileOfDocument asserts that the test above can fail.
func TestBrokenCorefileOfDocument(t *testing.T) {
	b := blocks("text\n~~~ corefile\n.:53 {\n    kubernetes {\n        manifests\n    }\n}\n~~~\n1. text\n\n   ```corefile\n   .:53 {\n       log\n   }\n   ```\n")
	if len(b) != 2 || b[0].language != "corefile" || b[0].line != 3 || b[1] != (block{"corefile", 12, ".:53 {\n    log\n}\n"}) {
		t.Fatalf("blocks: %+v", b)
	}
	p := daemon.Launch(t, daemon.Program(t, "clusterdns"), here(t, b[0].text, "http://127.0.0.1:1"))
	code, err := p.Wait(daemonEnds)
	if err != nil || code != 1 {
		t.Fatalf("exit code %d, %v; want 1 for a broken Corefile", code, err)
	}
	if !strings.Contains(p.Output(), "Corefile:4 - Error during parsing: invalid manifests: want a directory") {
		t.Errorf("the error was %q", p.Output())
	}
}

// here creates what a Corefile refers to: free ports of 127.0.0.1, files, an API server.
func here(t *testing.T, corefile, apiURL string) string {
	t.Helper()
	corefile = regexp.MustCompile(`(?m)^([.\w]+):\d+ \{$`).ReplaceAllString(corefile, "$1:PORT {\n    bind 127.0.0.1")
	corefile = strings.ReplaceAll(corefile, "    bind 127.0.0.1\n    bind 127.0.0.1\n", "    bind 127.0.0.1\n")
	for _, listener := range []string{"prometheus", "ready", "health"} {
		address := "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))
		corefile = regexp.MustCompile(`(?m)^(\s+`+listener+`)( [\d.:]+)?( \{)?$`).ReplaceAllString(corefile, "$1 "+address+"$3")
	}
	folder := t.TempDir()
	demo, err := filepath.Abs(filepath.Join(root, "deploy", "demo"))
	kit.Must(t, err)
	for name, text := range map[string]string{
		"kubeconfig":  kubeconfig(apiURL),
		"resolv.conf": "nameserver 127.0.0.1\n",
	} {
		kit.Write(t, filepath.Join(folder, name), text)
	}
	certificate := keyPair(t, folder)
	corefile = strings.NewReplacer(
		"deploy/demo", demo,
		"/etc/nearside/manifests", demo,
		"/etc/nearside/kubeconfig", filepath.Join(folder, "kubeconfig"),
		"/etc/nearside/client.crt", certificate, "/etc/nearside/ca.crt", certificate,
		"/etc/nearside/client.key", filepath.Join(folder, "key.pem"),
		"https://k8s.example.com:6443", strings.Replace(apiURL, "http:", "https:", 1),
		"/etc/resolv.conf", filepath.Join(folder, "resolv.conf"),
	).Replace(corefile)
	corefile = strings.ReplaceAll(corefile, "autopath @nodelocal\n", "autopath @nodelocal {\n        node node-1\n        endpoint "+apiURL+"\n    }\n")
	if !strings.Contains(corefile, "manifests") && !strings.Contains(corefile, "kubeconfig") && !strings.Contains(corefile, "endpoint") {
		corefile = regexp.MustCompile(`(?m)^(    (kubernetes|multicluster) .*\{)$`).ReplaceAllString(corefile, "$1\n        endpoint "+apiURL)
		corefile = regexp.MustCompile(`(?m)^(    multicluster\b[^{\n]*)$`).ReplaceAllString(corefile, "$1 {\n        endpoint "+apiURL+"\n    }")
	}
	return strings.ReplaceAll(corefile, "    loop\n", "") // it would query the server of resolv.conf, which does not run
}

func kubeconfig(url string) string {
	return `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "` + url + `"}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`
}

// TestCommandsOfReadme runs the dig commands of README.md and the one of kubernetes, and compares their output.
func TestCommandsOfReadme(t *testing.T) {
	kit.Require(t, "dig")
	server := daemon.Start(t, daemon.Program(t, "clusterdns"), here(t, kit.Read(t, filepath.Join(root, "Corefile.example")), ""))
	ran := 0
	for _, b := range slices.Concat(
		blocks(kit.Read(t, filepath.Join(root, "README.md"))), blocks(kit.Read(t, filepath.Join(root, "plugin", "kubernetes", "README.md"))),
	) {
		if b.language != "console" {
			continue
		}
		for _, shown := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			command, want, _ := strings.Cut(shown, "\n")
			if !strings.HasPrefix(command, "dig ") {
				continue
			}
			ran++
			args := strings.Fields(strings.Replace(command, "-p 1053", "-p "+strconv.Itoa(server.Port), 1))
			got, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", command, err, got)
			}
			if strings.TrimSpace(string(got)) != strings.TrimSpace(want) {
				t.Errorf("%s printed\n%s\nthe README shows\n%s", command, got, want)
			}
		}
	}
	if ran < 9 {
		t.Errorf("%d dig commands, want at least 9", ran)
	}
}
