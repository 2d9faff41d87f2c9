package rogue

import "time"

// Behaviour configures a server's answers and faults. The zero value is a good server: A queries get Address of the name,
// other queries NODATA. The fields combine. Shares are probabilities from 0 to 1.
type Behaviour struct {
	// Answers.
	Rcode    int    // the response code, without records if it is not NOERROR
	NoData   bool   // no records at all
	Bare     bool   // a header without the question, as in FORMERR of some servers
	TTL      uint32 // in seconds; 0 is 300
	Truncate bool   // over UDP: TC and no records
	// Keepalive is the timeout of edns-tcp-keepalive in units of 100 ms (RFC 7828 section 3.1), sent
	// over TCP if the query has EDNS. nil is none.
	Keepalive *uint16
	Wrong     Wrong // replies sent before each answer, unless Bare is set
	OnlyWrong bool  // the right answer is not sent

	// Timing of answers.
	Delay     time.Duration // of every answer
	Slow      time.Duration // of answers for names that begin with "slow", added to Delay
	Shuffle   time.Duration // max of a random delay of each answer, which puts answers out of order
	Late      time.Duration // of LateShare of the answers
	LateShare float64
	InOrder   bool    // over TCP a query is processed after the previous answer was sent
	Drop      float64 // share of queries that are read and not answered

	// TCP frames.
	Pause time.Duration // in the middle of each frame
	Cut   float64       // share of answers that are sent in part, before the connection is closed

	// Connections.
	Refuse       bool    // no socket listens; open connections are closed
	BlackHole    bool    // packets are lost: connections are neither accepted nor refused, queries not read (Linux only)
	Deaf         bool    // connections are accepted and not read from, with small buffers
	CloseAtOnce  bool    // connections are closed after accept
	CloseAfter   int     // number of answers after which a connection is closed; 0 is never
	CloseOnQuery int     // number of the query, from 1, on which its connection is closed; 0 is none
	ResetShare   float64 // share of queries on which the connection is reset
	Reset        bool    // connections are closed by RST instead of FIN

	// OverUDP is the behaviour over UDP. nil is the same as over TCP.
	OverUDP *Behaviour
}

// overUDP returns the behaviour over UDP.
func (b Behaviour) overUDP() Behaviour {
	if b.OverUDP != nil {
		return *b.OverUDP
	}
	return b
}

// Wrong is a set of replies that clients must drop.
type Wrong uint

const (
	WrongID        Wrong = 1 << iota // another message id
	WrongQuestion                    // another name
	WrongType                        // another type
	WrongDirection                   // a query, not a response
	Empty                            // no bytes: a frame of length 0
	Short                            // 3 bytes
	Noise                            // the right id and random bytes: 65535 over TCP, 1000 over UDP
)

// Well returns the behaviour of a good server, for OverUDP.
func Well() *Behaviour { return new(Behaviour) }
