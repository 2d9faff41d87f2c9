package fakeapi

// DropWatches breaks the connection of every open watch on a resource, or on
// all when it is "", and returns when they are closed. Clients may watch again.
func (s *Server) DropWatches(resource string) { s.watches.drop(resource) }

// Freeze makes watches on a resource, or on all when it is "", deliver nothing
// while frozen, not even bookmarks: as with a watch cache that is stuck.
// Connections stay open, new ones are accepted, and timeoutSeconds still ends
// them. Lists and gets answer with the present state. When it thaws, watches
// get what they missed, as far as the history reaches.
func (s *Server) Freeze(resource string, frozen bool) {
	s.setCollections(resource, func(c *collection) { c.frozen = frozen })
}

// Hang is Freeze where lists and gets hang as well, until it ends or the
// client goes away.
func (s *Server) Hang(resource string, hung bool) {
	s.setCollections(resource, func(c *collection) { c.frozen, c.hung = hung, hung })
}

// Refuse makes the server answer every request with 503. Open watches stay;
// see DropWatches. To have connections refused, use Close and Listen.
func (s *Server) Refuse(refuse bool) { s.refuse.Store(refuse) }

// Forbid makes the server answer every request about a resource, or about all
// when it is "", with 403, as it does where RBAC allows nothing. Open watches
// stay; see DropWatches.
func (s *Server) Forbid(resource string, forbid bool) {
	s.setCollections(resource, func(c *collection) { c.forbidden = forbid })
}

// Expire forgets the history, so that a watch from any resource version handed
// out so far, the present one too, gets "410 Expired". Open watches go on.
func (s *Server) Expire() {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.expire()
}

// DisableWatchList makes the server refuse sendInitialEvents with 422 Invalid,
// as one without streaming lists does.
func (s *Server) DisableWatchList(disable bool) { s.noWatchList.Store(disable) }

// setCollections changes one resource's collection, or all.
func (s *Server) setCollections(resource string, set func(*collection)) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	for name, c := range s.state.collections {
		if resource == "" || resource == name {
			set(c)
			c.wake()
		}
	}
}
