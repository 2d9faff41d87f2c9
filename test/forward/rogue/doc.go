// Package rogue is a DNS server for tests that misbehaves in configurable ways. Input: a Behaviour, which may change
// while the server runs, and queries; output: replies, right or wrong, and counts of queries and connections. It frames
// TCP messages itself, so that frames can be wrong too. It imports nothing of this module, so that every test may use it.
package rogue
