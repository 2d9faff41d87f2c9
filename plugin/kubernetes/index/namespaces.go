package index

// PutNamespace adds a namespace, if it does not exist.
func (ix *Index) PutNamespace(name string) {
	ix.write(func() {
		if ix.addNamespace(name) {
			ix.namespacesChanged(map[string]struct{}{name: {}})
		}
	})
}

// DeleteNamespace removes a namespace, if it exists. Its objects remain until they are deleted, but have no DNS names.
func (ix *Index) DeleteNamespace(name string) {
	ix.write(func() {
		if ix.removeNamespace(name) {
			ix.namespacesChanged(map[string]struct{}{name: {}})
		}
	})
}

// ReplaceNamespaces replaces all namespaces.
func (ix *Index) ReplaceNamespaces(all []string) {
	ix.write(func() {
		ix.replaced[namespaceKind] = true
		ix.replaceNamespaces(all)
	})
}

func (ix *Index) replaceNamespaces(all []string) {
	changed := map[string]struct{}{}
	noting := func(change func(string) bool) func(string) {
		return func(name string) {
			if change(name) {
				changed[name] = struct{}{}
			}
		}
	}
	same := func(name string) string { return name }
	replace(all, same, noting(ix.addNamespace), ix.namespaces.keys(), noting(ix.removeNamespace))
	ix.namespacesChanged(changed)
}

// Outdate ends the validity of every stored answer, for a missing resource that appears, and for restored records that are dropped.
func (ix *Index) Outdate() { ix.write(ix.accessGeneration.advance) }

// addNamespace adds a namespace, and reports whether it did not exist.
func (ix *Index) addNamespace(name string) bool {
	if ix.HasNamespace(name) {
		return false
	}
	ix.namespaces.set(name, struct{}{})
	return true
}

// removeNamespace removes a namespace, and reports whether it existed.
func (ix *Index) removeNamespace(name string) bool {
	if !ix.HasNamespace(name) {
		return false
	}
	ix.namespaces.remove(name, struct{}{})
	return true
}

// namespacesChanged advances the generations that depend on the existence of namespaces: the names of all their objects
// begin to exist, or cease to. It passes over the objects for all namespaces at once: the first sync has many.
func (ix *Index) namespacesChanged(changed map[string]struct{}) {
	if len(changed) == 0 {
		return
	}
	ix.setModified()
	for name := range changed {
		ix.NamespaceGeneration(name).advance()
	}
	for _, o := range [...]objects{ix.services, ix.imports} {
		for k, e := range o.each() {
			if _, ok := changed[k.Namespace]; ok && e.Service != nil {
				e.advance()
				ix.NameGeneration(k.Namespace, k.Name).advance()
			}
		}
	}
	for k, e := range ix.services.each() { // PTR records
		if _, ok := changed[k.Namespace]; ok && e.Service != nil {
			ix.addressesChanged(&Entry{Slices: e.Slices}, e.Service)
		}
	}
}
