package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// custom watches a resource whose definition may be missing, be added later, change its versions, and be deleted. While
// it is missing, the resource counts as synced.
//
// The versions are those in the API server's discovery. After a start of the server discovery may lag behind its
// resources, and servers behind one address may differ for a while. So the records are deleted only after two checks,
// with a pause between them, in which discovery did not list the resource, listing it failed with 404, and other
// resources could be listed.
type custom struct {
	*resource
	core    rest.Interface
	pace    pace
	outdate func() // called when the resource is served after it was missing: answers made without it are no longer valid
	backoff wait.Backoff

	checked bool   // a check has succeeded
	served  string // the version that the last check found; "" if none
	doubted bool   // the last check found no version, the check before did
}

// custom returns the watcher of a resource that has a definition.
func (r *resource) custom(core rest.Interface, p pace, outdate func()) *custom {
	return &custom{resource: r, core: core, pace: p, outdate: outdate, backoff: p.retries()}
}

// retries returns the pauses after failures.
func (p pace) retries() wait.Backoff {
	return wait.Backoff{Duration: p.retry, Factor: 2, Jitter: 0.5, Steps: 10, Cap: p.check}
}

// run checks whether the resource is served, and reads it while it is, until ctx ends.
func (c *custom) run(ctx context.Context) {
	ctx = klog.NewContext(ctx, withoutRepeats(c.log))
	for ctx.Err() == nil {
		version, err := c.find(ctx)
		switch {
		case err != nil:
			c.failed(ctx, err)
		case version == "":
			c.missing(ctx)
		default:
			c.doubted = false
			c.found(version)
			if c.health.appears() {
				c.outdate()
			}
			c.read(ctx)
		}
	}
}

// failed records a check that failed.
func (c *custom) failed(ctx context.Context, err error) {
	c.doubted = false
	c.health.failed(err)
	c.pause(ctx, c.backoff.Step())
}

// find returns the best version that is served, "" if there is none.
func (c *custom) find(ctx context.Context) (string, error) {
	version, err := c.discover(ctx)
	switch {
	case isDenied(err):
		return c.try(ctx)
	case err != nil || version != "" || c.health.isMissing():
		return version, err
	}
	if version, err = c.try(ctx); isDenied(err) {
		return "", nil // the server denies it whether it exists or not: discovery decides
	}
	return version, err
}

// discover returns the best version in the API server's discovery, "" if there is none.
func (c *custom) discover(ctx context.Context) (string, error) {
	var group metav1.APIGroup
	if err := c.discovery(ctx, &group, c.definition.group); err != nil {
		return "", unlessNotFound(err)
	}
	for _, version := range c.definition.versions {
		if !slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version }) {
			continue
		}
		var all metav1.APIResourceList // other kinds of the group may have other versions
		if err := unlessNotFound(c.discovery(ctx, &all, c.definition.group, version)); err != nil {
			return "", err
		}
		if slices.ContainsFunc(all.APIResources, func(r metav1.APIResource) bool { return r.Name == c.name }) {
			return version, nil
		}
	}
	return "", nil
}

func (c *custom) discovery(ctx context.Context, into runtime.Object, path ...string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return c.client.Get().AbsPath(append([]string{"/apis"}, path...)...).Do(ctx).Into(into)
}

// try returns the best version that can be listed, "" if there is none.
func (c *custom) try(ctx context.Context) (string, error) {
	for _, version := range c.definition.versions {
		c.useVersion(version)
		err := c.probe(ctx)
		if err == nil {
			return version, nil
		}
		if err := unlessNotFound(err); err != nil {
			return "", err
		}
	}
	return "", nil
}

// useVersion sets the version of all requests.
func (c *custom) useVersion(version string) { c.version.Store(&version) }

func unlessNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isDenied reports whether a request failed because the account lacks the permission.
func isDenied(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) }

// missing records a check that found no version.
func (c *custom) missing(ctx context.Context) {
	if err := c.vouch(ctx); err != nil {
		c.failed(ctx, err)
		return
	}
	if c.health.hasRead() && !c.doubted {
		c.doubted = true
		c.pause(ctx, c.pace.confirm)
		return
	}
	if !c.health.isMissing() {
		c.records.replace(nil)
	}
	c.health.missing()
	c.found("")
	c.pause(ctx, c.pace.check)
}

// vouch checks, the first time that the resource is missing, that an API server in working order has answered, and not a
// proxy before it that returns 404 for all.
func (c *custom) vouch(ctx context.Context) error {
	if c.health.isMissing() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := c.core.Get().Resource(source.Namespaces).VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).Do(ctx).Error()
	if isDenied(err) {
		return nil // not 404: an API server has answered
	}
	return err
}

// found records the served version, "" for none, and logs a change.
func (c *custom) found(version string) {
	first, before := !c.checked, c.served
	c.checked, c.served = true, version
	switch {
	case version == before && !first:
	case version == "" && first:
		c.log.Warningf("%s: the API server %s does not serve %s; %s until it does", c.name, c.host, c.names(), c.definition.without)
	case version == "":
		c.log.Warningf("%s: the API server %s no longer serves %s; %s until it does", c.name, c.host, c.names(), c.definition.without)
	case first:
	case before == "":
		c.log.Infof("%s: the API server %s serves %s/%s now", c.name, c.host, c.definition.group, version)
	default:
		c.log.Infof("%s: the API server %s serves %s/%s now instead of %s", c.name, c.host, c.definition.group, version, before)
	}
}

// names returns the name of the CustomResourceDefinition and its versions, for messages.
func (c *custom) names() string {
	return fmt.Sprintf("%s.%s (%s)", c.name, c.definition.group, strings.Join(c.definition.versions, ", "))
}

// read lists and watches the resource in the version that was found, until that is no longer served or the account lacks
// the permission.
func (c *custom) read(ctx context.Context) {
	c.useVersion(c.served)
	reflector := c.reflector(c)
	for ctx.Err() == nil {
		began := c.pace.now()
		err := reflector.ListAndWatchWithContext(ctx)
		if err != nil {
			c.health.failed(err)
		}
		if c.pace.now().Sub(began) > c.pace.check {
			c.backoff = c.pace.retries()
		}
		c.pause(ctx, c.backoff.Step())
		if apierrors.IsNotFound(err) || isDenied(err) {
			return
		}
	}
}

func (c *custom) pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
