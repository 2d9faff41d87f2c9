// Package push is the end in clusterdns of a session that keeps the cache of a node coherent with it (package vouch is the other
// end). A Registry records which sessions have answers that depend on which data, and sends each of them the handles of data that
// have changed, and heartbeats while the data are current.
//
// It has no connections, no records and no metrics: package dso has the messages, the connections implement Conn, and
// Statistics has the numbers.
package push
