package upstream

import "regexp"

// reason is why cases do not pass. It applies to the failures that match both patterns, and has to apply to one.
type reason struct {
	cases string // pattern of the folder, test and part
	err   string // pattern of the failure
	text  string
}

func (r reason) matches(o result) bool {
	return o.err != "" && regexp.MustCompile("^(?:"+r.cases+")$").MatchString(o.name()) && regexp.MustCompile(r.err).MatchString(o.err)
}

var reasons = []reason{}
