//go:build linux

package multicluster

import (
	"testing"
	"time"
)

// localNames are names of the cluster alone, which clusterdns answers in every state of ServiceImports.
func (c *cluster) localNames(t *testing.T) []wish {
	t.Helper()
	local := c.clusterIPs(t, "hello")
	return []wish{
		answer("hello"+inCluster, "A", local[0]), answer("hello"+inCluster, "AAAA", local[1]),
		answer("private"+inCluster, "A", c.v4(90)), {"none" + inCluster, "A", "NXDOMAIN"},
	}
}

// importedNames are names of imports.
func (c *cluster) importedNames(t *testing.T, cs *clusterset) []wish {
	t.Helper()
	hello := c.importIPs(t, "hello")
	v4, v6 := addresses(cs.pods())
	return []wish{
		answer("hello"+inSet, "A", hello[0]), answer("hello"+inSet, "AAAA", hello[1]), answer("hello"+inSet, "SRV", "42 hello"+inSet),
		answer("db"+inSet, "A", v4...), answer("db"+inSet, "AAAA", v6...), answer("db-0.east.prod.db"+inSet, "A", cs.east.v4(10)),
	}
}

// allAs are the same wanted reply for names of imports.
func allAs(reply string) (all []wish) {
	for _, name := range []string{"hello" + inSet, "db" + inSet, "db-0.west.db" + inSet, "none" + inSet, shop + ".svc.clusterset.local."} {
		all = append(all, wish{name, "A", reply})
	}
	return all
}

// nothing is the reply without imports.
func nothing() []wish {
	all := allAs("NXDOMAIN")
	all[len(all)-1].reply = "NODATA" // the namespace exists
	return all
}

// Parts of log lines about ServiceImports.
const (
	wordMissing = "does not serve"
	wordServes  = "serves " // contained in the next two
	wordThere   = "serves multicluster.x-k8s.io/"
	wordGone    = "no longer serves"
	wordUnread  = "SERVFAIL"
	wordAway    = "answering from the last known state"
	wordBack    = "again"
)

// resourceName is the name of ServiceImports in the log.
const resourceName = "serviceimports"

// testMissing has a cluster whose API server does not serve ServiceImports: all other answers are as usual.
func testMissing(t *testing.T, cs *clusterset) {
	for _, c := range cs.all() {
		t.Run(c.id, func(t *testing.T) {
			c.main.awaitReady(t)
			c.main.at("").await(t, "names of the cluster", append(c.localNames(t), nothing()...)...)
			c.main.at("").want(t, wish{"dns-version.clusterset.local.", "TXT", `"1.0.0"`}, wish{"clusterset.local.", "AAAA", "NODATA"})
			c.main.awaitLine(t, 0, resourceName, wordMissing)
			c.main.wantLines(t, 0, 1, resourceName)
		})
	}
}

// testInstalled has servers that run when the definition is created.
func testInstalled(t *testing.T, cs *clusterset, begin time.Time) {
	for _, c := range cs.all() {
		t.Run(c.id, func(t *testing.T) {
			c.main.at("").await(t, "names of imports", append(c.localNames(t), c.importedNames(t, cs)...)...)
			since(t, begin, "the definitions are created, and the names exist")
			c.main.awaitLine(t, 0, resourceName, wordThere)
			c.main.wantLines(t, 0, 2, resourceName)
		})
	}
}

// testVersions removes the version that clusterdns reads, then all, and then the definition, under load. Each time one
// line names the served version. If it takes long until the version is known, as on a busy machine, another line reports
// that no watch is open.
func testVersions(t *testing.T, cs *clusterset) {
	w := cs.west
	ask := w.main.at("")
	stop := ask.steadily(t, w.localNames(t)...)
	defer stop()
	t.Run("v1alpha1 alone is left", func(t *testing.T) {
		before, begin := len(w.main.Output()), time.Now()
		stop := ask.steadily(t, w.importedNames(t, cs)...)
		w.serve(t, "v1alpha1")
		w.main.awaitLine(t, before, resourceName, wordThere+"v1alpha1")
		stop()
		since(t, begin, "another version is read")
		w.change(t, "10.112.1.201")
		ask.await(t, "a change", answer("version"+inSet, "A", "10.112.1.201"))
		w.main.wantLines(t, before, 1, resourceName, wordServes)
	})
	t.Run("v1alpha1 at the start", func(t *testing.T) {
		s := w.launchMain(t)
		s.at("").await(t, "names of imports", append(w.localNames(t), answer("version"+inSet, "A", "10.112.1.201"))...)
		s.awaitReady(t)
		s.wantLines(t, 0, 0, resourceName)
	})
	t.Run("none is left", func(t *testing.T) {
		before, begin := len(w.main.Output()), time.Now()
		w.serve(t)
		ask.await(t, "no names of imports", nothing()...)
		since(t, begin, "the names do not exist")
		w.main.awaitLine(t, before, resourceName, wordGone)
		if err := w.main.isReady(); err != nil {
			t.Error(err)
		}
		w.main.wantLines(t, before, 1, resourceName, wordServes)
	})
	t.Run("all are back", func(t *testing.T) {
		before, begin := len(w.main.Output()), time.Now()
		w.serve(t, importVersions...)
		ask.await(t, "names of imports", w.importedNames(t, cs)...)
		since(t, begin, "the names exist again")
		w.main.awaitLine(t, before, resourceName, wordThere+"v1beta1")
		w.main.wantLines(t, before, 1, resourceName, wordServes)
	})
	t.Run("the definition is removed", func(t *testing.T) {
		before, begin := len(w.main.Output()), time.Now()
		w.removeImports(t)
		ask.await(t, "no names of imports", nothing()...)
		since(t, begin, "the names do not exist")
		w.main.awaitLine(t, before, resourceName, wordGone)
		if err := w.main.isReady(); err != nil {
			t.Error(err)
		}
		w.main.wantLines(t, before, 1, resourceName, wordServes)
	})
}

// testDenied has an account without the permission to read ServiceImports, and then grants it.
func testDenied(t *testing.T, cs *clusterset, s *server) {
	e := cs.east
	s.awaitReady(t)
	s.at(byProperty).await(t, "names of the cluster", append(e.localNames(t), allAs("SERVFAIL")...)...)
	s.awaitLine(t, 0, resourceName, wordUnread)
	s.wantLines(t, 0, 1, resourceName)
	begin := time.Now()
	e.grant(t, "imports-for-all", deniedAccount, rightsOfImports)
	s.at(byProperty).await(t, "names of imports", append(e.localNames(t), e.importedNames(t, cs)...)...)
	since(t, begin, "the permission is granted, and the names exist")
	s.awaitLine(t, 0, resourceName, wordBack)
	s.wantLines(t, 0, 2, resourceName)
	s.wantLines(t, 0, 1, clusterProperties.Resource) // which did not exist before
}

// testOutage kills the API server of east: clusterdns never concludes that ServiceImports are not served, neither at its
// end nor while it starts.
func testOutage(t *testing.T, cs *clusterset) {
	e := cs.east
	before, begin := len(e.main.Output()), time.Now()
	local := e.localNames(t)
	stop := e.main.at("").steadily(t, append(local, e.importedNames(t, cs)...)...)
	e.KillAPIServer()
	blind := e.launchMain(t)
	e.main.awaitLine(t, before, resourceName, wordAway)
	blind.at("").await(t, "a reply", append(allAs("SERVFAIL"), wish{"hello" + inCluster, "A", "SERVFAIL"})...)
	if blind.isReady() == nil {
		t.Error("ready before the first sync")
	}
	if err := e.main.isReady(); err != nil {
		t.Error(err)
	}
	e.StartAPIServer()
	since(t, begin, "the API server is killed and restarted")
	e.change(t, "10.112.2.202")
	e.main.at("").await(t, "a change", answer("version"+inSet, "A", "10.112.2.202"))
	blind.at("").await(t, "names, after the first sync", append(local, e.importedNames(t, cs)...)...)
	e.main.awaitLine(t, before, resourceName, wordBack)
	stop()
	since(t, begin, "both servers follow")
	e.main.wantLines(t, before, 2, resourceName)
}
