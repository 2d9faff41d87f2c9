package rogue

import "time"

// Behaviour is what a server does. The zero value answers well: A with Address of the name, everything
// else with no records. The fields combine. Shares are probabilities from 0 to 1.
type Behaviour struct {
	// The answers.
	Rcode    int    // the response code, without records if it is not NOERROR
	NoData   bool   // no records at all
	Bare     bool   // a header alone, without the question: as servers say FORMERR
	TTL      uint32 // in seconds; 0 is 300
	Truncate bool   // over UDP: TC and no records
	// Keepalive is the timeout of edns-tcp-keepalive in units of 100 ms (RFC 7828 section 3.1), sent
	// over TCP to those who send EDNS. nil is none.
	Keepalive *uint16
	Wrong     Wrong // what is sent before each answer, unless that is Bare
	OnlyWrong bool  // the answer itself is not sent

	// Their pace.
	Delay     time.Duration // of every answer
	Slow      time.Duration // of answers for names that begin with "slow", besides Delay
	Shuffle   time.Duration // at most; each answer waits for a random time up to this: out of order
	Late      time.Duration // of LateShare of the answers
	LateShare float64
	InOrder   bool    // over TCP a query is looked at when the answers before it are sent
	Drop      float64 // the share of queries that are read and not answered

	// The frames of TCP.
	Pause time.Duration // in the middle of each frame
	Cut   float64       // the share of answers of which half is sent; then the connection is closed

	// The connections.
	Refuse       bool    // nobody listens; connections that were open are closed
	BlackHole    bool    // packets are lost: nothing is accepted or refused, read or answered (Linux only)
	Deaf         bool    // connections are accepted and not read from, with small buffers
	CloseAtOnce  bool    // connections are closed when they are accepted
	CloseAfter   int     // answers on a connection; 0 is never
	CloseOnQuery int     // the query of a connection, counted from 1, that it is closed on; 0 is none
	ResetShare   float64 // the share of queries on which the connection is reset
	Reset        bool    // connections are closed with RST, not FIN

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

// Wrong is a set of replies that no client may take.
type Wrong uint

const (
	WrongID        Wrong = 1 << iota // another message id
	WrongQuestion                    // another name
	WrongType                        // another type
	WrongCase                        // the name in letters of the other case
	WrongDirection                   // a query, not a response
	Empty                            // no bytes: a frame of length 0
	Short                            // 3 bytes
	Noise                            // the right id and random bytes: 65535 over TCP, 1000 over UDP
)

// Well is a pointer to the behaviour of a good server, for OverUDP.
func Well() *Behaviour { return new(Behaviour) }
