// Package forward tests the forward plugin end to end: nodecache forwards to misbehaving servers (package rogue) and to
// real ones, and clients query nodecache. Input: Corefiles, behaviours and queries; output: failed tests. It depends only
// on the options and metrics of the plugin. Every name has a different address, which reveals answers to other questions.
package forward
