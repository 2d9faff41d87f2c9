package fakeapi

import (
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// customVerbs are what can be done to a custom resource, in the order in which
// a real server names them.
func customVerbs() metav1.Verbs {
	return metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
}

// discover answers requests for what there is of a group of custom resources,
// /apis/GROUP and /apis/GROUP/VERSION, and those for paths that there are not.
func (s *Server) discover(w http.ResponseWriter, req *http.Request) {
	encoding := s.state.codecs.negotiateError(req)
	path := strings.Trim(req.URL.Path, "/")
	if isBuiltIn(path) {
		writeError(w, encoding, errNoSuchPath())
		return
	}
	groupVersion, ok := strings.CutPrefix(path, "apis/")
	group, version, one := strings.Cut(groupVersion, "/")
	members := s.state.customGroup(group)
	if !ok || len(members) == 0 || strings.Contains(version, "/") {
		answerNoPage(w)
		return
	}
	s.requests.add(Request{Verb: VerbDiscover, Resource: groupVersion, ContentType: encoding.name})
	for _, c := range members {
		if !s.awaitAnswering(req, c) {
			return
		}
	}
	found := s.groupVersions(group, members)
	if one {
		found = s.versionResources(group, version, members)
	}
	if found == nil {
		answerNoPage(w)
		return
	}
	if err := answer(w, req, encoding, found, 0); err != nil {
		writeError(w, encoding, err)
	}
}

// isBuiltIn tells whether a path is in an API group that is built in.
func isBuiltIn(path string) bool {
	for _, res := range servedResources() {
		gv := "apis/" + res.group
		if res.group == "" {
			gv = "api"
		}
		if res.custom == nil && strings.HasPrefix(path+"/", gv+"/") {
			return true
		}
	}
	return false
}

// customGroup gives the collections of a group of custom resources, by name.
func (s *state) customGroup(group string) (members []*collection) {
	for _, c := range s.collections {
		if c.res.custom != nil && c.res.group == group {
			members = append(members, c)
		}
	}
	slices.SortFunc(members, func(a, b *collection) int { return strings.Compare(a.res.name, b.res.name) })
	return members
}

// groupVersions gives which versions of a group are served, or nil where none
// is.
func (s *Server) groupVersions(group string, members []*collection) runtime.Object {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	g := &metav1.APIGroup{Name: group}
	g.SetGroupVersionKind(metav1.Unversioned.WithKind("APIGroup"))
	for _, version := range members[0].res.versions {
		if slices.ContainsFunc(members, func(c *collection) bool { return slices.Contains(c.served, version) }) {
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version})
		}
	}
	if len(g.Versions) == 0 {
		return nil
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// versionResources gives which resources of a group are served in a version,
// or nil where none is.
func (s *Server) versionResources(group, version string, members []*collection) runtime.Object {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	l := &metav1.APIResourceList{GroupVersion: group + "/" + version}
	l.SetGroupVersionKind(metav1.Unversioned.WithKind("APIResourceList"))
	for _, c := range members {
		if !slices.Contains(c.served, version) {
			continue
		}
		r := metav1.APIResource{
			Name: c.res.name, SingularName: c.res.custom.singular, ShortNames: c.res.custom.shortNames,
			Namespaced: c.res.namespaced, Kind: c.res.kind, Verbs: customVerbs(),
		}
		l.APIResources = append(l.APIResources, r)
		if c.res.custom.status {
			r.Name, r.SingularName, r.ShortNames, r.Verbs = r.Name+"/status", "", nil, metav1.Verbs{"get", "patch", "update"}
			l.APIResources = append(l.APIResources, r)
		}
	}
	if len(l.APIResources) == 0 {
		return nil
	}
	return l
}
