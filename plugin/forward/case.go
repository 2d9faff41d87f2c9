package forward

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// caseFor is the time for which queries over UDP to an upstream that changes the case of names have names in lower case.
const caseFor = 10 * time.Minute

// changesCase reports whether a check has found that the upstream changes the case of names.
func (u *upstream) changesCase() bool {
	until := u.caseUntil.Load()
	return until != 0 && int64(validity.Now()) < until
}

// doubtCase checks whether the upstream changes the case of names, after a reply over UDP in another case, which may be forged. It
// does so at most once in tcpAgain.
func (u *upstream) doubtCase() {
	now, last := int64(validity.Now()), u.caseChecked.Load()
	if !u.changesCase() && (last == 0 || now-last >= int64(u.tcpAgain)) && u.caseChecked.CompareAndSwap(last, now) {
		go u.checkCase()
	}
}

// checkCase queries a name in mixed case, twice: an attacker would have to forge both replies.
func (u *upstream) checkCase() {
	for range 2 {
		if r := u.query(u.udp, u.c.checkQuery(mixedCase(u.c.caseName()))); r.err != nil || !r.caseChanged {
			return
		}
	}
	u.caseUntil.Store(int64(validity.Now() + caseFor))
	log.Warningf("Upstream %s changes the case of names: queries over UDP have names in lower case for %v", u.address, caseFor)
}

// caseName returns a name with letters that the upstream knows: the domain of health_check, the zone of the stanza, or localhost,
// which every resolver has.
func (c *config) caseName() string {
	for _, name := range []string{c.checkName, c.from} {
		if mixedCase(name) != name {
			return name
		}
	}
	return "localhost."
}

// mixedCase returns a name with every second character in upper case.
func mixedCase(name string) string {
	b := []byte(name)
	for i := 1; i < len(b); i += 2 {
		if 'a' <= b[i] && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}
