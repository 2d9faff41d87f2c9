package nodelocaldns

import (
	"slices"

	clog "github.com/coredns/coredns/plugin/pkg/log"
)

// remark is something about the configuration that does not keep it from being served.
type remark struct {
	severity severity
	text     string
}

type severity int

const (
	info severity = iota
	warning
	failure
)

// remarks are those of one rendering.
type remarks []remark

func (r *remarks) add(one remark) {
	if !slices.Contains(*r, one) {
		*r = append(*r, one)
	}
}

// log says those that were not said of the rendering before.
func (r remarks) log(before remarks) {
	for _, one := range r {
		if slices.Contains(before, one) {
			continue
		}
		switch one.severity {
		case info:
			clog.Info(one.text)
		case warning:
			clog.Warning(one.text)
		case failure:
			clog.Error(one.text)
		}
	}
}
