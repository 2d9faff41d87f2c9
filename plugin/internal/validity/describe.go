package validity

import (
	"fmt"
	"strings"
	"time"
)

// Describe describes each bound of the validity: the TTL, the data, and the session.
func (v *Validity) Describe(now time.Duration) string {
	var all []string
	switch {
	case v.Expires == 0:
	case now < v.Expires:
		all = append(all, fmt.Sprintf("its TTL ends in %s", rounded(v.Expires-now)))
	default:
		all = append(all, fmt.Sprintf("its TTL ended %s ago", rounded(now-v.Expires)))
	}
	if v.ByGeneration() {
		all = append(all, v.describeBounds())
	}
	switch {
	case v.Voucher == nil:
	case v.Voucher.Ended():
		all = append(all, "the session with cluster DNS has reported a change of its data")
	case v.Vouched(now):
		all = append(all, "valid beyond the TTL while heartbeats of the session with cluster DNS arrive")
	case v.Lapsed():
		all = append(all, "no session with cluster DNS reports its end (it is older, or its own was closed): it is fetched again")
	default:
		all = append(all, "no heartbeat of the session with cluster DNS arrives: the TTL applies")
	}
	if all == nil {
		return "without an end"
	}
	return strings.Join(all, "; ")
}

// describeBounds describes the generations.
func (v *Validity) describeBounds() string {
	if v.Ended() {
		return "for one query only"
	}
	all, changed := 0, 0
	for i := range v.Bounds {
		b := &v.Bounds[i]
		if b.Generation == nil {
			break
		}
		all++
		if b.Generation.Load() != b.Number {
			changed++
		}
	}
	if changed > 0 {
		return fmt.Sprintf("%d of the %d generations of its data have advanced", changed, all)
	}
	return fmt.Sprintf("until one of the %d generations of its data advances", all)
}

// rounded returns a duration to print, not negative: another goroutine may have read the clock later.
func rounded(d time.Duration) time.Duration { return max(0, d).Round(time.Millisecond) }
