package fakeapi

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// gzipFrom is the size in bytes from which answers are compressed for clients
// which accept that.
const gzipFrom = 128 * 1024

// options reads and checks the query of a list or watch as a real server does.
func (s *Server) options(req *http.Request, t target) (*internalversion.ListOptions, filter, error) {
	watchList := !s.noWatchList.Load()
	opts := &internalversion.ListOptions{}
	if err := internalscheme.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
		return nil, filter{}, apierrors.NewBadRequest(err.Error())
	}
	internalversion.SetListOptionsDefaults(opts, watchList)
	if errs := validation.ValidateListOptions(opts, watchList); len(errs) > 0 {
		return nil, filter{}, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	f := filter{namespace: t.namespace, labels: labels.Everything(), fields: fields.Everything()}
	if opts.LabelSelector != nil {
		f.labels = opts.LabelSelector
	}
	if opts.FieldSelector != nil {
		selector, err := opts.FieldSelector.Transform(t.collection.res.convertFieldLabel)
		if err != nil {
			return nil, filter{}, apierrors.NewBadRequest(err.Error())
		}
		f.fields = selector
	}
	return opts, f, nil
}

// awaitAnswering waits while the collection hangs. It reports false when the
// client is gone before.
func (s *Server) awaitAnswering(req *http.Request, c *collection) bool {
	for {
		s.state.mu.Lock()
		hung, changed := c.hung, c.changed
		s.state.mu.Unlock()
		if !hung {
			return true
		}
		select {
		case <-changed:
		case <-req.Context().Done():
			return false
		}
	}
}

// get answers a request for one object.
func (s *Server) get(w http.ResponseWriter, req *http.Request, t target, rep representation) error {
	if !s.awaitAnswering(req, t.collection) {
		return nil
	}
	s.state.mu.Lock()
	v := t.collection.objects[key{t.namespace, t.name}]
	s.state.mu.Unlock()
	if v == nil {
		return apierrors.NewNotFound(t.collection.res.groupResource(), t.name)
	}
	if err := rep.fits(t.collection.res, false); err != nil {
		return err
	}
	obj, err := rep.single(v)
	if err != nil {
		return err
	}
	return answer(w, req, rep.encoding, obj, len(v.raw))
}

// list answers a request for a list.
func (s *Server) list(w http.ResponseWriter, req *http.Request, t target, rep representation) error {
	opts, f, err := s.options(req, t)
	if err != nil {
		return err
	}
	if !s.awaitAnswering(req, t.collection) {
		return nil
	}
	rv, start, versions, err := s.listed(t.collection, opts)
	if err != nil {
		return err
	}

	if err := rep.fits(t.collection.res, true); err != nil {
		return err
	}
	meta := metav1.ListMeta{ResourceVersion: strconv.FormatUint(rv, 10)}
	limit := int(opts.Limit)
	if opts.ResourceVersion == "0" && opts.Continue == "" {
		limit = 0 // as a watch cache does, which answers these
	}
	var matching []*version
	size, remaining := 0, int64(0)
	for _, v := range versions {
		switch {
		case start != nil && v.key.less(*start) || !f.matches(v):
			continue
		case limit == 0 || len(matching) < limit:
			matching = append(matching, v)
			size += len(v.raw)
			continue
		case remaining == 0:
			if meta.Continue, err = (continuation{RV: rv, Namespace: v.key.namespace, Name: v.key.name}).encode(); err != nil {
				return err
			}
		}
		remaining++
	}
	if remaining > 0 && f.labels.Empty() && f.fields.Empty() {
		meta.RemainingItemCount = &remaining
	}
	l, err := rep.list(t.collection.res, meta, matching)
	if err != nil {
		return err
	}
	return answer(w, req, rep.encoding, l, size)
}

// listed gives the objects a list is to be picked from, the resource version
// they are at, and, for a further page, the key where it begins.
func (s *Server) listed(c *collection, opts *internalversion.ListOptions) (uint64, *key, []*version, error) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()

	if opts.Continue != "" {
		token, err := decodeContinuation(opts.Continue)
		if err != nil {
			return 0, nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: continue key is not valid: %v", err))
		}
		if opts.ResourceVersion != "" && opts.ResourceVersion != "0" {
			return 0, nil, nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if token.RV < c.oldest || token.RV > s.state.rv {
			return 0, nil, nil, apierrors.NewResourceExpired("The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.")
		}
		return token.RV, &key{token.Namespace, token.Name}, c.snapshot(token.RV), nil
	}

	rv, err := parseRV(opts.ResourceVersion)
	if err != nil {
		return 0, nil, nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if rv > s.state.rv {
		return 0, nil, nil, errTooLarge(rv, s.state.rv)
	}
	// A page at a resource version is at that very version, as etcd answers it.
	exact := opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact ||
		opts.ResourceVersionMatch == "" && opts.Limit > 0 && rv > 0
	if exact {
		if rv < c.oldest {
			return 0, nil, nil, apierrors.NewResourceExpired(fmt.Sprintf("The resourceVersion for the provided list is too old: %d (%d)", rv, c.oldest))
		}
		return rv, nil, c.snapshot(rv), nil
	}
	return s.state.rv, nil, c.current(), nil
}

// continuation is what a continue token holds: where the next page begins, and
// at which resource version.
type continuation struct {
	RV        uint64 `json:"rv"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (c continuation) encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encode continue token: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(b), nil
}

func decodeContinuation(token string) (continuation, error) {
	var c continuation
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return c, err
	}
	if c.RV == 0 {
		return c, errors.New("no resource version in it")
	}
	return c, nil
}

// answer writes obj, whose size in bytes is roughly known, as the whole answer.
func answer(w http.ResponseWriter, req *http.Request, e *encoding, obj runtime.Object, size int) error {
	w.Header().Set("Content-Type", e.name)
	w.Header().Set("Cache-Control", "no-cache, private")
	if size >= gzipFrom && strings.Contains(req.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
		if err != nil {
			return fmt.Errorf("gzip: %w", err)
		}
		breakOff(e.write(obj, z))
		breakOff(z.Close())
		return nil
	}
	if size >= gzipFrom {
		breakOff(e.write(obj, w))
		return nil
	}
	// Small answers are encoded first, so that what can't be is an error.
	var buf bytes.Buffer
	if err := e.write(obj, &buf); err != nil {
		return err
	}
	_, err := io.Copy(w, &buf)
	breakOff(err)
	return nil
}

// breakOff ends the connection when an answer could not be written to its end,
// so that the client does not take what it got for the whole.
func breakOff(err error) {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}
