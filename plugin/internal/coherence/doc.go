// Package coherence has the two ends of a session that keeps the cache of a node coherent with clusterdns. A Registry, in
// clusterdns, records which sessions have answers that depend on which data, and sends each of them the handles of data that
// have changed, and heartbeats while the data are current. A Session, in nodecache, turns the messages into the validity of
// answers: a Voucher vouches for an answer while its session was heard lately and none of its handles was invalidated.
//
// It has no connections, no records and no metrics: package dso has the messages, the connections implement Conn, and
// Statistics has the numbers.
package coherence
