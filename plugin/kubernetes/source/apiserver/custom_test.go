package apiserver

import (
	"context"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// withImports are the options of a source that reads ServiceImports and the cluster's ID.
var withImports = source.Options{Endpoints: true, Imports: true, ClusterID: true}

func serviceImport(name, ip string, label map[string]string) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: label},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.ClusterSetIP, IPs: []string{ip},
			Ports: []mcsv1beta1.ServicePort{{Name: "http", Port: 80}},
		},
	}
}

func clusterProperty(name, value string) *unstructured.Unstructured {
	p := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": value}}}
	p.SetGroupVersionKind(schema.GroupVersionKind{Group: "about.k8s.io", Version: "v1", Kind: "ClusterProperty"})
	p.SetName(name)
	return p
}

// importedSlice is a slice of an import, and also of a Service if that is not "".
func importedSlice(name, imported, cluster, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := slice(name, service, addresses...)
	s.Labels = map[string]string{mcsv1beta1.LabelServiceName: imported, mcsv1beta1.LabelSourceCluster: cluster}
	if service != "" {
		s.Labels[discoveryv1.LabelServiceName] = service
	}
	return s
}

// front is a proxy before an API server: it counts requests, and answers some itself.
type front struct {
	url string

	mu        sync.Mutex
	asked     map[string]int
	verbs     map[string]int    // requests by path and verb, "list", "watch" or "stream" for a streamed list
	selectors map[string]string // of labels and fields, in the last request for a path
	answer    func(path string) (status int)
	streams   int // the status of streamed lists, 0 to forward them
}

func startFront(t *testing.T, api *kubeapi.Server) *front {
	t.Helper()
	to, err := url.Parse(api.URL())
	kit.Must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	// Watches that end with the source are not logged.
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	f := &front{asked: map[string]int{}, verbs: map[string]int{}, selectors: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := f.statusOf(r.URL); status != 0 {
			http.Error(w, http.StatusText(status), status)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *front) statusOf(u *url.URL) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked[u.Path]++
	verb := "list"
	switch q := u.Query(); {
	case q.Has("sendInitialEvents"):
		verb = "stream"
	case q.Has("watch"):
		verb = "watch"
	}
	f.verbs[u.Path+" "+verb]++
	if verb == "stream" && f.streams != 0 {
		return f.streams
	}
	f.selectors[u.Path] = u.Query().Get("labelSelector") + "|" + u.Query().Get("fieldSelector")
	if f.answer == nil {
		return 0
	}
	return f.answer(u.Path)
}

// selector returns the selectors of labels and fields in the last request for a path.
func (f *front) selector(path string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.selectors[path]
}

// answers sets the status of requests, 0 to forward them; nil forwards all.
func (f *front) answers(with func(path string) (status int)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = with
}

// failsStreams answers streamed lists with a status, 0 forwards them.
func (f *front) failsStreams(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.streams = status
}

// fails answers paths with these prefixes with a status.
func (f *front) fails(status int, beginnings ...string) {
	f.answers(func(path string) int {
		for _, b := range beginnings {
			if strings.HasPrefix(path, b) {
				return status
			}
		}
		return 0
	})
}

// count returns the number of requests for a path with a verb.
func (f *front) count(path, verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.verbs[path+" "+verb]
}

// counts returns the number of requests for each path.
func (f *front) counts() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.asked)
}

const (
	importsGroup = "/apis/multicluster.x-k8s.io"
	importsList  = importsGroup + "/v1beta1/serviceimports"
)

// clusterset is a running source that reads ServiceImports with short intervals.
type clusterset struct {
	*Source
	t     *testing.T
	api   *kubeapi.Server
	front *front
	log   *kit.Log
	ix    *index.Index
	clock *clock
}

// startClusterset runs a source with a prepared API server.
func startClusterset(t *testing.T, o source.Options, prepare func(api *kubeapi.Server, f *front)) *clusterset {
	t.Helper()
	c := &clusterset{t: t, log: kit.Logged(t), api: kubeapi.New(t), ix: index.New(), clock: new(clock)}
	c.front = startFront(t, c.api)
	c.put(namespace("shop"), service("web", "10.96.0.1", nil), serviceImport("web", "10.97.0.1", nil), clusterProperty(source.ClusterPropertyName, "East"))
	if prepare != nil {
		prepare(c.api, c.front)
	}
	var err error
	if c.Source, err = New(Connection{Endpoint: c.front.url, QPS: 1000, Burst: 1000}, o); err != nil {
		t.Fatal(err)
	}
	c.pace = pace{now: time.Now, retry: time.Millisecond, check: 20 * time.Millisecond, confirm: 10 * time.Millisecond}
	for _, r := range c.resources {
		r.health.now = c.clock.now
	}
	kit.Background(t, func(ctx context.Context) { c.Run(ctx, c.ix) })
	return c
}

func (c *clusterset) put(objects ...runtime.Object) {
	c.t.Helper()
	kit.Must(c.t, c.api.Put(objects...))
}

func (c *clusterset) serve(resource string, versions ...string) {
	c.t.Helper()
	kit.Must(c.t, c.api.ServeVersions(resource, versions...))
}

// ip returns the addresses of an import, "none" without the import.
func (c *clusterset) ip(name string) string {
	e := c.ix.Import("shop", name)
	if e == nil {
		return "none"
	}
	var all []string
	for _, a := range e.Service.IPs {
		all = append(all, a.String())
	}
	return strings.Join(all, " ")
}

func (c *clusterset) awaitIP(what, name, ip string) {
	c.t.Helper()
	kit.Eventually(c.t, what, func() bool { return c.ip(name) == ip })
}

func (c *clusterset) awaitID(what, id string) {
	c.t.Helper()
	kit.Eventually(c.t, what, func() bool { return c.ix.ClusterID() == index.NewSymbol(id) })
}

func (c *clusterset) awaitStatus(what, resource string, isMet func(source.Status) bool) {
	c.t.Helper()
	kit.Eventually(c.t, what, func() bool { return isMet(status(c.Source, resource)) })
}

// heard waits until the state of a resource has been updated.
func (c *clusterset) heard(resource string) {
	c.t.Helper()
	before := status(c.Source, resource).Heard
	c.awaitStatus("news of "+resource, resource, func(s source.Status) bool { return s.Heard.After(before) })
}

// looks waits for a number of requests of discovery for a group.
func (c *clusterset) looks(times int) {
	c.t.Helper()
	end := c.front.counts()[importsGroup] + times
	kit.Eventually(c.t, strconv.Itoa(times)+" looks", func() bool { return c.front.counts()[importsGroup] >= end })
}

// wantLines checks how many lines with all parts have been logged.
func (c *clusterset) wantLines(n int, parts ...string) {
	c.t.Helper()
	if got := c.log.Lines(parts...); len(got) != n {
		c.t.Errorf("logged %q, want %d lines with %q", got, n, parts)
	}
}

func TestImports(t *testing.T) {
	for _, tc := range []struct {
		name    string
		lists   bool // an API server without streamed lists
		version string
	}{
		{"streamed lists", false, "v1beta1"}, {"paged lists", true, "v1beta1"},
		{"streamed lists of v1alpha1", false, "v1alpha1"}, {"paged lists of v1alpha1", true, "v1alpha1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startClusterset(t, withImports, func(api *kubeapi.Server, _ *front) {
				api.DisableWatchList(tc.lists)
				all := []runtime.Object{importedSlice("web-east", "web", "east", "", "10.1.0.1"), importedSlice("both", "web", "west", "web", "10.1.0.2")}
				for i := range 1200 { // more than two pages
					all = append(all, serviceImport("svc-"+strconv.Itoa(i), netip.AddrFrom4([4]byte{10, 98, byte(i / 250), byte(i % 250)}).String(), nil))
				}
				kit.Must(t, api.Load(all...))
				kit.Must(t, api.ServeVersions(source.ServiceImports, tc.version))
			})
			kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
			if n := len(c.ix.Imports()); n != 1201 {
				t.Fatalf("%d imports after the first list, want 1201", n)
			}
			if e := c.ix.Import("shop", "web"); len(e.Slices) != 2 || e.Ready() != 2 {
				t.Errorf("web has %d slices, %d ready endpoints, want 2 and 2", len(e.Slices), e.Ready())
			}
			if e := c.ix.Service("shop", "web"); len(e.Slices) != 1 {
				t.Errorf("the Service web has %d slices, want 1", len(e.Slices))
			}
			c.awaitID("the ID", "east")

			c.put(serviceImport("svc-7", "10.97.0.7", nil))
			kit.Must(t, c.api.Delete(serviceImport("svc-8", "", nil)))
			c.awaitIP("an update", "svc-7", "10.97.0.7")
			c.awaitIP("a deletion", "svc-8", "none")

			kept := c.ix.ImportRecord("shop", "svc-9")
			c.api.Refuse(true)
			c.api.DropWatches("")
			kit.Must(t, c.api.Delete(serviceImport("svc-10", "", nil)))
			c.put(serviceImport("svc-11", "10.97.0.11", nil), clusterProperty(source.ClusterPropertyName, "west"))
			c.api.Expire()
			if c.ip("svc-10") == "none" {
				t.Error("an import vanished while the API server was away")
			}
			c.api.Refuse(false)
			c.awaitIP("a deletion while away", "svc-10", "none")
			c.awaitIP("an update while away", "svc-11", "10.97.0.11")
			c.awaitID("another ID while away", "west")
			if c.ix.ImportRecord("shop", "svc-9") != kept {
				t.Error("the relist replaced the record of an unchanged import")
			}
			unchanged := serviceImport("svc-9", "10.98.0.9", nil)
			if r, err := theResource(c.Source, source.ServiceImports).records.strip(unchanged); err != nil || r != any(kept) {
				t.Errorf("a list makes another record of an unchanged import: %v, %v", r, err)
			}
			c.wantLines(0, "plugin/kubernetes: serviceimports")
		})
	}
}

// TestClusterID reads the ID of the cluster, and no other property.
func TestClusterID(t *testing.T) {
	c := startClusterset(t, withImports, func(api *kubeapi.Server, _ *front) {
		kit.Must(t, api.Put(clusterProperty("clusterset.k8s.io", "all"), clusterProperty("a.example.com", "b")))
	})
	c.awaitID("the ID", "east")
	c.put(clusterProperty(source.ClusterPropertyName, "west.example"))
	c.awaitID("another ID", "west.example")
	c.put(clusterProperty(source.ClusterPropertyName, "not_an_id"))
	c.awaitID("none that can be one", "")
	c.put(clusterProperty(source.ClusterPropertyName, "north"))
	c.awaitID("one again", "north")
	kit.Must(t, c.api.Delete(clusterProperty("a.example.com", "")))
	c.put(clusterProperty("clusterset.k8s.io", "other"), clusterProperty(source.ClusterPropertyName, "south"))
	c.awaitID("after changes of others", "south")
	kit.Must(t, c.api.Delete(clusterProperty(source.ClusterPropertyName, "")))
	c.awaitID("none", "")
	c.put(clusterProperty(source.ClusterPropertyName, "east"))
	c.awaitID("one that came", "east")
	c.serve(source.ClusterProperties)
	c.awaitID("none without its definition", "")
	c.serve(source.ClusterProperties, "v1alpha1")
	c.awaitID("one in the only version", "east")
	c.wantLines(1, "[WARNING]", "clusterproperties: ", "no longer serves clusterproperties.about.k8s.io (v1, v1beta1, v1alpha1); the ID of this cluster is not known until it does")
	c.wantLines(1, "[INFO]", "clusterproperties: ", "serves about.k8s.io/v1alpha1 now")
	c.wantLines(1, "clusterproperties", "cluster ID left out")
	c.wantLines(3, "plugin/kubernetes: clusterproperties")
}

// TestOtherProperties: other properties do not change the ID of the cluster, even if a server ignores the selector.
func TestOtherProperties(t *testing.T) {
	ix := index.New()
	s := &Source{stripper: source.NewStripper(source.Options{})}
	r := s.records(source.ClusterProperties, ix)
	property := func(name, value string) *source.ClusterProperty {
		return &source.ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: source.ClusterPropertySpec{Value: value}}
	}
	id, other := property(source.ClusterPropertyName, "east"), property("clusterset.k8s.io", "west")
	var list []any
	for _, o := range []*source.ClusterProperty{other, id} {
		stripped, err := r.strip(o)
		kit.Must(t, err)
		list = append(list, stripped)
	}
	r.replace(list)
	for _, change := range []func(any) error{r.put, r.remove} {
		kit.Must(t, change(other))
		if got := ix.ClusterID(); got != index.NewSymbol("east") {
			t.Errorf("the ID is %q, want east", got)
		}
	}
	kit.Must(t, r.remove(id))
	if got := ix.ClusterID(); got != (index.Symbol{}) {
		t.Errorf("the ID is %q without its property", got)
	}
}

// TestImportsCome starts without the definition, installs it later, and deletes it.
func TestImportsCome(t *testing.T) {
	c := startClusterset(t, withImports, func(api *kubeapi.Server, _ *front) {
		kit.Must(t, api.ServeVersions(source.ServiceImports))
	})
	kit.Eventually(t, "synced without imports", func() bool { return synced(c.Source) })
	if len(c.ix.Imports()) != 0 || !hasIP(c.ix, "web", "10.96.0.1") {
		t.Error("want no import and all else")
	}
	c.awaitID("the ID", "east")
	for range 5 {
		c.heard(source.ServiceImports)
	}
	before := c.front.counts()
	c.looks(5)
	for path, n := range c.front.counts() {
		if path != importsGroup && n != before[path] {
			t.Errorf("%s was requested while the group was missing", path)
		}
	}
	c.wantLines(1, "[WARNING]", "serviceimports: the API server "+c.front.url, "does not serve serviceimports.multicluster.x-k8s.io (v1beta1, v1alpha1); zones of a clusterset have no names until it does")

	c.serve(kubeapi.ServiceExports, "v1beta1") // the group, with another resource
	for range 3 {
		c.heard(source.ServiceImports)
	}
	c.wantLines(1, "plugin/kubernetes: serviceimports")

	c.serve(source.ServiceImports, "v1beta1", "v1alpha1")
	c.awaitIP("an import", "web", "10.97.0.1")
	c.put(serviceImport("web", "10.97.0.2", nil))
	c.awaitIP("an update", "web", "10.97.0.2")
	c.wantLines(1, "[INFO]", "serviceimports: ", "serves multicluster.x-k8s.io/v1beta1 now")

	c.serve(source.ServiceImports)
	c.awaitIP("none without the definition", "web", "none")
	c.awaitStatus("in step with nothing", source.ServiceImports, func(s source.Status) bool { return s.Synced && !s.Denied && !s.Frozen })
	for range 3 {
		c.heard(source.ServiceImports)
	}
	c.wantLines(1, "[WARNING]", "no longer serves serviceimports.multicluster.x-k8s.io")

	c.serve(source.ServiceImports, "v1alpha1")
	c.awaitIP("an import of another version", "web", "10.97.0.2")
	c.wantLines(1, "[INFO]", "serves multicluster.x-k8s.io/v1alpha1 now")
	c.wantLines(4, "plugin/kubernetes: serviceimports")
	c.wantLines(0, "client-go", "rror")
}

// TestImportsComeDenied adds the resource before the permission to read it: it is no longer in step, and answers that
// depend on its absence are outdated.
func TestImportsComeDenied(t *testing.T) {
	c := startClusterset(t, withImports, func(api *kubeapi.Server, _ *front) {
		kit.Must(t, api.ServeVersions(source.ServiceImports))
	})
	kit.Eventually(t, "synced without imports", func() bool { return synced(c.Source) })
	before := c.ix.AccessGeneration().Load()
	c.api.Forbid(source.ServiceImports, true)
	c.serve(source.ServiceImports, "v1beta1")
	c.awaitStatus("denied", source.ServiceImports, func(s source.Status) bool { return s.Denied && !s.Synced })
	if c.ix.AccessGeneration().Load() == before {
		t.Error("cached answers are not outdated")
	}
	c.api.Forbid(source.ServiceImports, false)
	c.awaitIP("an import, once it may be read", "web", "10.97.0.1")
	c.awaitStatus("granted", source.ServiceImports, func(s source.Status) bool { return !s.Denied && s.Synced })
}

// TestImportsChangeVersion: while any version is served, records stay in use.
func TestImportsChangeVersion(t *testing.T) {
	c := startClusterset(t, withImports, nil)
	kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
	kept := c.ix.ImportRecord("shop", "web")
	lost := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer close(lost)
		for ctx.Err() == nil && c.ix.ImportRecord("shop", "web") == kept && status(c.Source, source.ServiceImports).Synced {
			time.Sleep(time.Millisecond)
		}
	}()
	for i, versions := range [][]string{{"v1alpha1"}, {"v1beta1"}, {"v1beta1", "v1alpha1"}, {"v1alpha1"}} {
		c.serve(source.ServiceImports, versions...)
		ip := netip.AddrFrom4([4]byte{10, 97, 1, byte(i)}).String()
		c.put(serviceImport("last", ip, nil))
		c.awaitIP("the last update", "last", ip)
		kit.Eventually(t, "a watch", func() bool { w, _ := theResource(c.Source, source.ServiceImports).health.silence(); return w != nil })
	}
	select {
	case <-lost:
		t.Error("a record was dropped or made anew, or the resource was out of step, in between")
	default:
	}
	stop()
	<-lost
	c.wantLines(2, "[INFO]", "serves multicluster.x-k8s.io/v1alpha1 now instead of v1beta1")
	c.wantLines(1, "[INFO]", "serves multicluster.x-k8s.io/v1beta1 now instead of v1alpha1")
	c.wantLines(3, "plugin/kubernetes: serviceimports")
}

// TestImportsKept: servers, and proxies before them, report wrongly that ServiceImports are missing, or fail. The records
// stay in use.
func TestImportsKept(t *testing.T) {
	isList := func(path string) bool { return strings.HasSuffix(path, "/serviceimports") }
	listed := func(c *clusterset) {
		c.put(serviceImport("lists", "10.97.0.8", nil))
		c.awaitIP("an update by a list", "lists", "10.97.0.8")
	}
	looksFor := func(n int) func(c *clusterset) { return func(c *clusterset) { c.looks(n) } }
	for _, tc := range []struct {
		name   string
		answer func(path string, asked int) (status int) // asked is the number of requests for the path
		wait   func(c *clusterset)
	}{
		{"discovery lags, and lists work again", func(path string, asked int) int {
			if path == importsGroup || isList(path) && asked <= 2 {
				return http.StatusNotFound
			}
			return 0
		}, listed},
		{"a version's discovery lags, and lists work again", func(path string, asked int) int {
			if strings.HasPrefix(path, importsGroup+"/") && (!isList(path) || asked <= 2) {
				return http.StatusNotFound
			}
			return 0
		}, listed},
		{"nothing exists for what is no API server", func(string, int) int { return http.StatusNotFound }, looksFor(5)},
		{"lists are not found, and discovery fails", func(path string, _ int) int {
			switch {
			case isList(path):
				return http.StatusNotFound
			case strings.HasPrefix(path, importsGroup):
				return http.StatusServiceUnavailable
			}
			return 0
		}, looksFor(3)},
		{"neither discovery nor lists find it, but then lists fail", func(path string, asked int) int {
			switch {
			case isList(path) && asked > 3:
				return http.StatusServiceUnavailable
			case strings.HasPrefix(path, importsGroup):
				return http.StatusNotFound
			}
			return 0
		}, looksFor(3)},
		{"lists fail", func(path string, _ int) int {
			if isList(path) {
				return http.StatusServiceUnavailable
			}
			return 0
		}, nil},
		{"lists are not found, but discovery says they are there", func(path string, _ int) int {
			if isList(path) {
				return http.StatusNotFound
			}
			return 0
		}, looksFor(5)},
		{"all fails", func(string, int) int { return http.StatusInternalServerError }, nil},
		{"nothing may be read", func(string, int) int { return http.StatusForbidden }, looksFor(3)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startClusterset(t, withImports, nil)
			kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
			asked := map[string]int{}
			c.front.answers(func(path string) int {
				asked[path]++
				return tc.answer(path, asked[path])
			})
			c.api.DropWatches(source.ServiceImports)
			if tc.wait != nil {
				tc.wait(c)
			}
			if c.ip("web") != "10.97.0.1" || !status(c.Source, source.ServiceImports).Synced {
				t.Fatal("the records were deleted")
			}
			c.put(serviceImport("web", "10.97.0.2", nil))
			c.front.answers(nil)
			c.awaitIP("the update", "web", "10.97.0.2")
			c.wantLines(0, "[WARNING]", "serviceimports: ", "no longer serves")
		})
	}

	t.Run("one of two servers lags", func(t *testing.T) {
		c := startClusterset(t, withImports, nil)
		kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
		kept := c.ix.ImportRecord("shop", "web")
		const missing, fails = http.StatusNotFound, http.StatusServiceUnavailable
		for i, looks := range [][]int{{missing}, {missing}, {missing, fails, missing}, {fails, missing}} { // all later ones find it
			look := 0
			c.front.answers(func(path string) int {
				if path == importsGroup {
					look++
				}
				switch {
				case !strings.HasPrefix(path, importsGroup) || look > len(looks):
					return 0
				case look == 0:
					return missing
				}
				return looks[look-1]
			})
			c.api.DropWatches(source.ServiceImports)
			c.looks(len(looks) + 1)
			ip := netip.AddrFrom4([4]byte{10, 97, 1, byte(i)}).String()
			c.put(serviceImport("last", ip, nil))
			c.awaitIP("the last update", "last", ip)
			kit.Eventually(t, "a watch", func() bool { w, _ := theResource(c.Source, source.ServiceImports).health.silence(); return w != nil })
		}
		if c.ix.ImportRecord("shop", "web") != kept {
			t.Error("the records were deleted in between")
		}
		c.wantLines(0, "serviceimports: ", "no longer serves")
	})
}

// TestImportsDenied has a role without the permission to read ServiceImports.
func TestImportsDenied(t *testing.T) {
	denied := func(s source.Status) bool { return s.Denied && !s.Synced }
	granted := func(s source.Status) bool { return !s.Denied && s.Synced }
	for _, tc := range []struct {
		name    string
		prepare func(api *kubeapi.Server, f *front)
		grant   func(c *clusterset)
	}{
		{"lists and watches", func(api *kubeapi.Server, _ *front) { api.Forbid(source.ServiceImports, true) },
			func(c *clusterset) { c.api.Forbid(source.ServiceImports, false) }},
		{"discovery as well", func(_ *kubeapi.Server, f *front) { f.fails(http.StatusForbidden, importsGroup) },
			func(c *clusterset) { c.front.answers(nil) }},
		{"without credentials", func(_ *kubeapi.Server, f *front) { f.fails(http.StatusUnauthorized, importsGroup) },
			func(c *clusterset) { c.front.answers(nil) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := startClusterset(t, withImports, tc.prepare)
			c.awaitStatus("denied", source.ServiceImports, denied)
			for _, other := range []string{source.Services, source.EndpointSlices, source.Namespaces, source.ClusterProperties} {
				c.awaitStatus(other, other, granted)
			}
			r, state := theResource(c.Source, source.ServiceImports), new(watching)
			c.clock.advance(lostAfter + time.Second)
			for range 3 {
				r.check(t.Context(), state)
			}
			c.looks(3)
			c.wantLines(1, "[WARNING]", "serviceimports: no watch on the API server", "answering names of clusterset zones with SERVFAIL until they have been read; last error")
			c.wantLines(1, "plugin/kubernetes: serviceimports")
			c.wantLines(0, "client-go")
			tc.grant(c)
			c.awaitIP("an import, once it may be read", "web", "10.97.0.1")
			c.awaitStatus("granted", source.ServiceImports, granted)
			r.check(t.Context(), state)
			c.wantLines(1, "[INFO]", "serviceimports: watching the API server", "again")
		})
	}

	t.Run("discovery alone", func(t *testing.T) {
		c := startClusterset(t, withImports, func(api *kubeapi.Server, f *front) {
			f.answers(func(path string) int {
				if strings.HasPrefix(path, importsGroup) && !strings.HasSuffix(path, "/serviceimports") {
					return http.StatusForbidden
				}
				return 0
			})
			kit.Must(t, api.ServeVersions(source.ServiceImports, "v1alpha1"))
		})
		c.awaitIP("an import", "web", "10.97.0.1")
		c.serve(source.ServiceImports)
		c.awaitIP("none without the definition", "web", "none")
		c.awaitStatus("in step with nothing", source.ServiceImports, granted)
		c.serve(source.ServiceImports, "v1beta1")
		c.awaitIP("an import again", "web", "10.97.0.1")
	})

	t.Run("missing resource", func(t *testing.T) {
		c := startClusterset(t, withImports, func(api *kubeapi.Server, f *front) {
			kit.Must(t, api.ServeVersions(source.ServiceImports))
			f.answers(func(path string) int {
				if strings.HasSuffix(path, "/serviceimports") {
					return http.StatusForbidden
				}
				return 0
			})
		})
		c.awaitStatus("in step with nothing", source.ServiceImports, granted)
		c.serve(source.ServiceImports, "v1beta1")
		c.awaitStatus("denied when it exists", source.ServiceImports, denied)
		c.serve(source.ServiceImports)
		c.awaitStatus("in step with nothing again", source.ServiceImports, granted)
		c.serve(source.ServiceImports, "v1beta1")
		c.front.answers(nil)
		c.awaitIP("an import, once it may be read", "web", "10.97.0.1")
		c.serve(source.ServiceImports)
		c.awaitIP("none without the definition", "web", "none")
		c.front.fails(http.StatusForbidden, importsList)
		c.serve(source.ServiceImports, "v1beta1")
		c.awaitStatus("denied when it exists again", source.ServiceImports, denied)
	})

	t.Run("missing resource, namespaces denied as well", func(t *testing.T) {
		c := startClusterset(t, withImports, func(api *kubeapi.Server, _ *front) {
			api.Forbid(source.Namespaces, true)
			kit.Must(t, api.ServeVersions(source.ServiceImports))
		})
		c.awaitStatus("in step with nothing", source.ServiceImports, granted)
	})

	t.Run("after it was granted", func(t *testing.T) {
		c := startClusterset(t, withImports, nil)
		kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
		c.api.Forbid(source.ServiceImports, true)
		c.api.DropWatches(source.ServiceImports)
		c.awaitStatus("denied", source.ServiceImports, func(s source.Status) bool { return s.Denied && s.Synced })
		c.looks(3)
		if c.ip("web") != "10.97.0.1" {
			t.Error("the records were deleted")
		}
		c.put(serviceImport("web", "10.97.0.2", nil))
		c.api.Forbid(source.ServiceImports, false)
		c.awaitIP("the update", "web", "10.97.0.2")
		c.awaitStatus("granted", source.ServiceImports, granted)
	})
}

// TestImportsAway starts without an API server, and loses it later while ServiceImports are missing.
func TestImportsAway(t *testing.T) {
	c := startClusterset(t, withImports, func(api *kubeapi.Server, f *front) {
		f.fails(http.StatusServiceUnavailable, "/")
		kit.Must(t, api.ServeVersions(source.ServiceImports))
	})
	r, state := theResource(c.Source, source.ServiceImports), new(watching)
	c.looks(3)
	if s := status(c.Source, source.ServiceImports); s.Synced || s.Denied || !s.Heard.IsZero() {
		t.Errorf("status without an API server: %+v", s)
	}
	c.front.answers(nil)
	c.awaitStatus("in step with nothing", source.ServiceImports, func(s source.Status) bool { return s.Synced })
	c.front.fails(http.StatusServiceUnavailable, importsGroup)
	c.looks(3)
	c.clock.advance(lostAfter + time.Second)
	r.check(t.Context(), state)
	c.looks(3)
	r.check(t.Context(), state)
	c.wantLines(1, "[WARNING]", "serviceimports: no watch on the API server", "answering from the last known state")
	heard := status(c.Source, source.ServiceImports).Heard
	c.looks(2)
	if got := status(c.Source, source.ServiceImports); got.Heard != heard || !got.Synced {
		t.Errorf("status %+v, want in step, and heard at %v", got, heard)
	}
	c.front.answers(nil)
	c.heard(source.ServiceImports)
	r.check(t.Context(), state)
	c.wantLines(1, "[INFO]", "serviceimports: the API server", "answers again")
	c.wantLines(1, "serviceimports: ", "does not serve")
}

// TestImportsFrozen: the watchdog is that of every resource.
func TestImportsFrozen(t *testing.T) {
	for _, resource := range []string{source.ServiceImports, source.ClusterProperties} {
		t.Run(resource, func(t *testing.T) {
			c := startClusterset(t, withImports, nil)
			kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
			kit.Eventually(t, "watches", func() bool { return c.api.OpenWatches("") == len(c.resources) })
			r, state := theResource(c.Source, resource), new(watching)
			c.api.Freeze(resource, true)
			c.put(serviceImport("web", "10.97.0.2", nil), clusterProperty(source.ClusterPropertyName, "west"))
			c.clock.advance(quietAfter + time.Second)
			r.check(t.Context(), state)
			if state.answered == 0 {
				t.Fatal("the server was not probed, or did not answer")
			}
			c.front.fails(http.StatusServiceUnavailable, "/") // so that no list succeeds yet
			c.clock.advance(frozenAfter + time.Second)
			r.check(t.Context(), state)
			if !status(c.Source, resource).Frozen {
				t.Error("the frozen watch is not reported")
			}
			c.front.answers(nil)
			c.awaitIP("the import", "web", "10.97.0.2")
			c.awaitID("the ID", "west")
			c.awaitStatus("not frozen after the new list", resource, func(s source.Status) bool { return !s.Frozen })
		})
	}
}

// TestImportsOnly does not read the cluster's own Services.
func TestImportsOnly(t *testing.T) {
	o := source.Options{Endpoints: true, Pods: true, Imports: true, ImportsOnly: true, ClusterID: true}
	selects := func(c *clusterset, path, want string) {
		c.t.Helper()
		if got := c.front.selector(path); got != want {
			c.t.Errorf("%s is read with the selectors %q, want %q", path, got, want)
		}
	}
	const slicesPath, propertiesPath = "/apis/discovery.k8s.io/v1/endpointslices", "/apis/about.k8s.io/v1/clusterproperties"
	run := func(t *testing.T, o source.Options, blue map[string]string) *clusterset {
		return startClusterset(t, o, func(api *kubeapi.Server, _ *front) {
			both := importedSlice("both", "web", "west", "web", "10.1.0.2")
			for key, value := range blue {
				both.Labels[key] = value
			}
			kit.Must(t, api.Put(slice("own", "web", "10.1.0.1"), both, importedSlice("imported", "web", "east", "", "10.1.0.3"), serviceImport("blue", "10.97.0.3", blue)))
		})
	}
	slices := func(c *clusterset) (names string) {
		for _, name := range []string{"own", "both", "imported"} {
			if r := c.ix.SliceRecord("shop", name); r != nil {
				names += " " + name + ":" + r.Service
			}
		}
		return names
	}

	t.Run("all", func(t *testing.T) {
		c := run(t, o, nil)
		kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
		if c.ix.Service("shop", "web") != nil || c.ip("web") != "10.97.0.1" || !c.ix.HasNamespace("shop") {
			t.Error("want imports and namespaces, and no Service")
		}
		if got := slices(c); got != " both: imported:" {
			t.Errorf("slices %q", got)
		}
		for path := range c.front.counts() {
			if strings.HasSuffix(path, "/services") || strings.HasSuffix(path, "/pods") {
				t.Errorf("%s was read", path)
			}
		}
		selects(c, slicesPath, mcsv1beta1.LabelServiceName+"|")
		selects(c, propertiesPath, "|metadata.name="+source.ClusterPropertyName)
		c.put(slice("own", "web", "10.1.0.4"), importedSlice("own", "web", "east", "", "10.1.0.4"))
		kit.Eventually(t, "a label that came", func() bool { return slices(c) == " own: both: imported:" })
		c.put(slice("own", "web", "10.1.0.4"))
		kit.Eventually(t, "a label that went", func() bool { return slices(c) == " both: imported:" })
	})

	t.Run("of labels", func(t *testing.T) {
		blue := map[string]string{"tier": "blue"}
		options := o
		options.Labels = labels.SelectorFromSet(blue)
		c := run(t, options, blue)
		kit.Eventually(t, "synced", func() bool { return synced(c.Source) })
		if got := slices(c); got != " both:" {
			t.Errorf("slices %q", got)
		}
		if c.ip("web") != "none" || c.ip("blue") != "10.97.0.3" {
			t.Error("labels do not select imports")
		}
		selects(c, importsList, "tier=blue|")
		selects(c, slicesPath, mcsv1beta1.LabelServiceName+",tier=blue|")
		selects(c, propertiesPath, "|metadata.name="+source.ClusterPropertyName)
	})
}

// TestImportsStop ends a source in each of its states.
func TestImportsStop(t *testing.T) {
	for name, prepare := range map[string]func(api *kubeapi.Server, f *front){
		"reading": func(*kubeapi.Server, *front) {},
		"missing": func(api *kubeapi.Server, _ *front) { _ = api.ServeVersions(source.ServiceImports) },
		"denied":  func(api *kubeapi.Server, _ *front) { api.Forbid(source.ServiceImports, true) },
		"away":    func(_ *kubeapi.Server, f *front) { f.fails(http.StatusServiceUnavailable, importsGroup) },
		"hung":    func(api *kubeapi.Server, _ *front) { api.Hang(source.ServiceImports, true) },
	} {
		t.Run(name, func(t *testing.T) {
			api := kubeapi.New(t)
			f := startFront(t, api)
			prepare(api, f)
			s, err := New(Connection{Endpoint: f.url, QPS: 1000, Burst: 1000}, withImports)
			kit.Must(t, err)
			s.pace.retry, s.pace.check, s.pace.confirm = time.Hour, time.Hour, time.Hour
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				s.Run(ctx, index.New())
			}()
			kit.Eventually(t, "a request", func() bool { return f.counts()[importsGroup] > 0 })
			kit.Eventually(t, "all else", func() bool { return status(s, source.Services).Synced })
			stop()
			kit.Eventually(t, "the end", func() bool {
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
		})
	}
}
