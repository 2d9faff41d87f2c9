package validity

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// Generation counts the changes of data that answers are made from.
type Generation interface{ Load() uint64 }

// Bound is a Generation and the number that it had before an answer was made.
type Bound struct {
	Generation Generation
	Number     uint64
}

// MaxBounds is the maximum number of Generations that an answer can depend on.
const MaxBounds = 6

// Validity is how long an answer may be served: until a time and while Generations do not advance, whichever ends first. A
// Voucher extends it beyond the time while heartbeats of its session arrive, and ends it when the session reports that the
// answer has ended. The zero value never ends.
type Validity struct {
	// Expires is the end in time since the start of the process (see Now), 0 for none.
	Expires time.Duration
	// Bounds are the Generations; unused elements are last and empty.
	Bounds [MaxBounds]Bound
	// Voucher is that of the session over which the answer was received, nil without one.
	Voucher *vouch.Voucher

	// Dependent is the stored answer with the Voucher, nil until the store sets it. Sources are the stored answers of which Join
	// has made an answer.
	Dependent vouch.Dependent
	Sources   *Source
}

// Source is a stored answer of which another answer was made.
type Source struct {
	vouch.Dependent
	Next *Source
}

// advanced is a Generation that has always advanced: the Number of its Bounds is 0.
type advanced struct{}

// Load implements Generation.
func (advanced) Load() uint64 { return 1 }

// End ends the validity: the answer is for the client that waits for it, and not to be stored.
func (v *Validity) End() { v.Bounds[0] = Bound{Generation: advanced{}} }

// Ended reports whether the validity was ended by End or DependOn, or by Join with such a validity.
func (v *Validity) Ended() bool { return v.Bounds[0].Generation == advanced{} }

// DependOn ends the validity when a Generation advances from its present number, or from the number at the first call
// for this Generation. The data whose changes it counts must be read after the call. The validity ends at once without
// a Generation, or with more than MaxBounds of them.
func (v *Validity) DependOn(g Generation) {
	if g == nil {
		v.End()
		return
	}
	for i := range v.Bounds {
		switch v.Bounds[i].Generation {
		case g:
			return
		case nil:
			v.Bounds[i] = Bound{g, g.Load()}
			return
		}
	}
	v.End()
}

// Until ends the validity at a time, which no Voucher extends.
func (v *Validity) Until(t time.Duration) {
	if v.Voucher != nil {
		v.Voucher = vouch.Join(v.Voucher, v.Expires, nil, t)
	}
	v.until(t)
}

func (v *Validity) until(t time.Duration) {
	if v.Expires == 0 || t < v.Expires {
		v.Expires = t
	}
}

// Join makes the validity end when another one ends. If they have different numbers of a Generation, it has advanced already. The
// joined Voucher extends the validity only while the Vouchers of both vouch, or until Expires of a validity without a Voucher.
func (v *Validity) Join(other *Validity) {
	v.Voucher = vouch.Join(v.Voucher, v.Expires, other.Voucher, other.Expires)
	if other.Dependent != nil {
		v.Sources = &Source{other.Dependent, v.Sources}
	}
	if other.Expires != 0 {
		v.until(other.Expires)
	}
	for _, b := range other.Bounds {
		if b.Generation == nil || v.Ended() {
			return
		}
		v.join(b)
	}
}

func (v *Validity) join(b Bound) {
	for i := range v.Bounds {
		switch v.Bounds[i].Generation {
		case b.Generation:
			// Of two numbers, the Generation has advanced from the lower one: a session has to report the advance.
			v.Bounds[i].Number = min(v.Bounds[i].Number, b.Number)
			return
		case nil:
			v.Bounds[i] = b
			return
		}
	}
	v.End()
}

// ByGeneration reports whether the answer depends on Generations.
func (v *Validity) ByGeneration() bool { return v.Bounds[0].Generation != nil }

// Current reports whether no Generation that the answer depends on has advanced, and no session has invalidated the answer.
func (v *Validity) Current() bool {
	return (v.Voucher == nil || !v.Voucher.Ended()) && v.counted()
}

// counted reports whether no Generation that the answer depends on has advanced.
func (v *Validity) counted() bool {
	for i := range v.Bounds {
		b := &v.Bounds[i]
		if b.Generation == nil {
			return true
		}
		if b.Generation.Load() != b.Number {
			return false
		}
	}
	return true
}

// Vouched reports whether a Voucher extends the validity at a time: the answer is valid, whether or not Expires has passed.
func (v *Validity) Vouched(now time.Duration) bool { return v.Voucher != nil && v.Voucher.Vouches(now) }

// Lapsed reports whether the answer has to be fetched again although its TTL has not expired: see vouch.Session.Retire.
func (v *Validity) Lapsed() bool { return v.Voucher != nil && v.Voucher.Lapsed() }

// Expired reports whether Expires has passed, and no Voucher extends the validity.
func (v *Validity) Expired(now time.Duration) bool {
	return v.Expires != 0 && now >= v.Expires && !v.Vouched(now)
}

// Fresh reports whether the answer may be served at a time since the start of the process.
func (v *Validity) Fresh(now time.Duration) bool {
	if v.Expires != 0 && now >= v.Expires || v.Lapsed() {
		return v.Vouched(now) && v.counted() // a Voucher that has ended does not vouch
	}
	return v.Current()
}
