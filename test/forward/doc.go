// Package forward tests the forward plugin from outside: it starts nodecache, has it forward to servers
// that misbehave (package rogue) and to real ones, and asks it as clients do. Input: Corefiles,
// behaviours and queries; it knows nothing of the code under test but its options and metrics. Every name
// has an address of its own, so that an answer that is not for its question is found.
package forward
