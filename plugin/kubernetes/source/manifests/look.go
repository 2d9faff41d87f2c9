package manifests

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxTries bounds how often a directory that changes while it is read is read again.
const maxTries = 4

// readTree reads every file that may have changed. What it has read stood in the directory at one
// moment: it lists the directory again at the end and starts over where that shows another state, so
// half of a swap of links is never seen. A directory that never rests is taken as it comes.
//
// Directories are watched before they are read, so no change falls in between.
func (s *Source) readTree(w *watch, all bool) (*tree, error) {
	t, err := list(s.root, s.bounds)
	if err != nil {
		return nil, err
	}
	for range maxTries {
		w.follow(t.dirs)
		for _, path := range sorted(t.files) {
			f := s.files[path]
			if f == nil {
				f = &file{path: path, show: s.show(path)}
				s.files[path] = f
			}
			s.read(f, t.files[path], all)
		}
		again, err := list(s.root, s.bounds)
		if err != nil {
			return nil, err
		}
		if t.same(again) {
			return t, nil
		}
		t, all = again, false
	}
	t.restless = true
	return t, nil
}

// look brings the index in step with the directory. It returns after what time to look again whether
// or not a change is heard of, 0 for no time soon.
func (s *Source) look(w *watch, all bool) (again time.Duration) {
	t, err := s.readTree(w, all)
	if err != nil {
		s.trouble("", s.directoryError(err).Error())
		s.freeze(w.broken())
		return s.wait.poll
	}
	s.mended(t)
	changed := s.drop(t)
	changed = s.choose() || changed
	s.report()
	s.settleFiles()
	if changed {
		s.serve()
	}
	s.hear()
	switch {
	case t.restless || slices.ContainsFunc(s.inOrder(), (*file).held):
		return s.wait.empty / 4
	case w.broken() || len(t.unreadable) > 0:
		return s.wait.poll
	}
	return 0
}

// trouble logs what is wrong with a directory, once.
func (s *Source) trouble(rel, problem string) {
	if s.troubles[rel] != problem {
		s.troubles[rel] = problem
		s.log.Errorf("%s; what was read there last is still served", problem)
	}
}

// mended logs which directories can be read again, and which cannot.
func (s *Source) mended(t *tree) {
	for _, rel := range sorted(s.troubles) {
		if _, ok := t.unreadable[rel]; !ok {
			delete(s.troubles, rel)
			s.log.Infof("%s can be read again", s.show(rel))
		}
	}
	for _, rel := range sorted(t.unreadable) {
		s.trouble(rel, fmt.Sprintf("%s: %s", s.show(rel), t.unreadable[rel]))
	}
}

// drop forgets the files that are gone and reports whether there were any. Those of a directory that
// cannot be read now are not gone.
func (s *Source) drop(t *tree) (dropped bool) {
	for path, f := range s.files {
		if _, ok := t.files[path]; ok || t.hides(path) {
			continue
		}
		delete(s.files, path)
		dropped = dropped || f.good != nil
	}
	return dropped
}

func (t *tree) hides(path string) bool {
	for dir := range t.unreadable {
		if strings.HasPrefix(path, dir+"/") || strings.HasPrefix(path, dir+`\`) {
			return true
		}
	}
	return false
}

func (s *Source) inOrder() []*file {
	all := make([]*file, 0, len(s.files))
	for _, path := range sorted(s.files) {
		all = append(all, s.files[path])
	}
	return all
}

// choose decides what is served of each file: what it holds now, or what it held before where it is
// broken or has an object that another file has. It reports whether that differs from what is served.
func (s *Source) choose() (changed bool) {
	all := s.inOrder()
	for _, f := range all {
		f.chosen, f.conflict = f.wants(), ""
	}
	// A file that falls back may have an object again that another took over, hence the loop. Files
	// only ever fall back, and what was served before had no object twice: it ends.
	for s.fallBack(all) {
	}
	for _, f := range all {
		changed = changed || f.changes()
	}
	return changed
}

// place is where an object is.
type place struct {
	in *file
	at *object
}

// fallBack finds objects that are in two files and makes one of the two keep what it held before: the
// one that changed, and of two that changed the one whose path comes last.
func (s *Source) fallBack(all []*file) (again bool) {
	places := map[key]place{}
	for _, f := range all {
		for _, o := range f.chosen.all() {
			p := place{f, o}
			first, ok := places[o.key]
			if !ok {
				places[o.key] = p
				continue
			}
			loser, winner := p, first
			if first.in.changes() && !f.changes() {
				loser, winner = first, p
			}
			for _, taken := range loser.in.chosen.all() {
				if places[taken.key].in == loser.in {
					delete(places, taken.key)
				}
			}
			again = loser.in.changes() || again
			loser.yield(winner)
			if loser == p {
				break
			}
			places[o.key] = p
		}
	}
	return again
}

// changes tells whether something else than before is to be served of the file.
func (f *file) changes() bool { return f.chosen != f.good }

func (p place) yield(to place) {
	p.in.chosen = p.in.good
	if p.in.conflict == "" {
		p.in.conflict = fmt.Sprintf("%s:%d: %s: already in %s:%d; delete one of the two", p.in.show, p.at.line, p.at.key, to.in.show, to.at.line)
	}
}

// report logs each file that has become broken, or been mended, once.
func (s *Source) report() {
	for _, f := range s.inOrder() {
		p := f.trouble()
		switch {
		case f.held() || p == f.logged:
			continue
		case p == "":
			s.log.Infof("%s is mended and served as it is now", f.show)
		case f.good == nil:
			s.log.Errorf("%s; nothing of the file is served", p)
		default:
			s.log.Errorf("%s; the file is served as it was before", p)
		}
		f.logged = p
	}
}

// settleFiles makes what was chosen what is served, and logs what a user should know about it.
func (s *Source) settleFiles() {
	for _, f := range s.inOrder() {
		if !f.changes() {
			continue
		}
		f.good = f.chosen
		s.notes(f)
	}
}

// maxNotes bounds the warnings about one file, and maxKinds the lines about kinds that are not served.
const (
	maxNotes = 5
	maxKinds = 50
)

func (s *Source) notes(f *file) {
	for i, note := range f.good.notes {
		if i == maxNotes {
			s.log.Warningf("%s: and %d more", f.show, len(f.good.notes)-maxNotes)
			break
		}
		s.log.Warningf("%s:%s", f.show, note)
	}
	for _, o := range f.good.others {
		if s.firstOf(o.kind) {
			s.log.Infof("%s:%d: %s is not read: DNS needs %s", f.show, o.line, o.kind, series(kindNames, "and"))
		}
	}
	if s.opts.Imports || s.opts.PodsOnly {
		return
	}
	for _, o := range f.good.objects {
		if o.key.kind == "ServiceImport" && s.firstOf(o.key.kind) {
			s.log.Infof("%s:%d: a kubernetes block without zones of multicluster does not answer for ServiceImports", f.show, o.line)
		}
	}
}

// firstOf tells whether an object is the first of a kind about which there is a line to log.
func (s *Source) firstOf(kind string) bool {
	if _, ok := s.served.kinds[kind]; ok || len(s.served.kinds) >= maxKinds {
		return false
	}
	if s.served.kinds == nil {
		s.served.kinds = map[string]struct{}{}
	}
	s.served.kinds[kind] = struct{}{}
	return true
}
