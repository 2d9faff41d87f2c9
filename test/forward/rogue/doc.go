// Package rogue is a DNS server for tests that misbehaves as it is told to. Input: a Behaviour, which
// may change while the server runs; output: answers, or what it sends instead, and counts of what its
// clients did. It knows nothing of its clients, and frames what it sends over TCP itself, so that
// everything may be wrong about it. It imports nothing of this module, so that every test may use it.
package rogue
