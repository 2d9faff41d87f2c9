package fakeapi

import (
	"mime"
	"net/http"
	"sort"
	"strconv"
	"strings"
)

// The kinds which clients name to get metadata only.
const (
	partialKind     = "PartialObjectMetadata"
	partialListKind = "PartialObjectMetadataList"
)

// negotiate picks the representation for a request from its Accept header:
// the first acceptable clause of the highest quality. It reports false when the
// client accepts nothing the server has. Errors have no metadata to show, so
// that for them only clauses about whole objects count. Whole custom objects
// are JSON only.
func (c *codecs) negotiate(req *http.Request, forError, forCustom bool) (representation, bool) {
	header := strings.Join(req.Header.Values("Accept"), ",")
	if strings.TrimSpace(header) == "" {
		return representation{codecs: c, encoding: c.json}, true
	}
	type choice struct {
		representation
		quality float64
	}
	var choices []choice
	for clause := range strings.SplitSeq(header, ",") {
		mediaType, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		r := representation{codecs: c}
		switch mediaType {
		case c.protobuf.name:
			r.encoding = c.protobuf
		case c.json.name, "*/*":
			r.encoding = c.json
		default:
			continue
		}
		if as, ok := params["as"]; ok {
			if forError || params["g"] != "meta.k8s.io" || params["v"] != "v1" {
				continue
			}
			if as != partialKind && as != partialListKind {
				continue
			}
			r.metadataOnly, r.metadataList = true, as == partialListKind
		}
		if forCustom && r.encoding == c.protobuf && !r.metadataOnly {
			continue
		}
		quality := 1.0
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil {
			quality = q
		}
		choices = append(choices, choice{r, quality})
	}
	if len(choices) == 0 {
		return representation{codecs: c, encoding: c.json}, false
	}
	sort.SliceStable(choices, func(i, j int) bool { return choices[i].quality > choices[j].quality })
	return choices[0].representation, true
}

// negotiateError picks the encoding for an error: one which the client accepts
// for whole objects, or else JSON.
func (c *codecs) negotiateError(req *http.Request) *encoding {
	r, _ := c.negotiate(req, true, false)
	return r.encoding
}
