package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// storm is a measurement of instances at a moment when all of them list.
type storm struct {
	what string
	// The times from the moment at which the API server was ready, for each instance, the shortest first.
	after []time.Duration
	codes map[string]float64 // responses by code since the start of the instances
	flows *flows
}

// stormSize is small enough that hundreds of instances fit into memory.
var stormSize = size{name: "storm", cluster: cluster(1_000, 1_000, 10_000, 0.1)}

// outages are the times without an API server.
var outages = []time.Duration{5 * time.Second, time.Minute}

// instancesPerProcess is the maximum of them.
const instancesPerProcess = 75

// fleet is the instances in their processes.
type fleet struct {
	*bench
	*world
	addresses []string
	processes []*child.Process
	services  int // that were created for a measurement
}

// measureStorm prints what the API server sees when its clients begin, and when it returns after each outage.
func (b *bench) measureStorm(ctx context.Context, api *kubeapi.Server, instances int) error {
	all, err := b.storms(ctx, api, stormSize, instances, outages)
	if err != nil {
		return err
	}
	fmt.Printf("\n| %d instances | max requests/s | max in queues | 429 | streamed lists | lists | waited, s | half have a new Service after, s | 99 %% | all | responses by code |\n|%s\n",
		instances, "---|---|---|---|---|---|---|---|---|---|---|")
	for _, s := range all {
		rate, inQueue := s.flows.highest()
		last := s.flows.all[len(s.flows.all)-1]
		fmt.Printf("| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %.1f | %.2f | %.2f | %.2f | %v |\n", s.what, rate, inQueue, last.rejected, last.watchLists, last.lists, last.waited,
			s.after[len(s.after)/2].Seconds(), s.after[len(s.after)*99/100].Seconds(), s.after[len(s.after)-1].Seconds(), s.codes)
	}
	return nil
}

// storms measures the start of the instances and the returns of the API server.
func (b *bench) storms(ctx context.Context, api *kubeapi.Server, s size, instances int, outages []time.Duration) (all []storm, err error) {
	w, err := newWorld(api, s)
	if err != nil {
		return nil, err
	}
	f := &fleet{bench: b, world: w}
	defer f.stop()
	if err := f.permit(ctx, permission("", "services", "namespaces"), permission("discovery.k8s.io", "endpointslices")); err != nil {
		return nil, err
	}
	start, err := f.measure(ctx, "start", func(ctx context.Context) error { return f.start(ctx, instances, nil) })
	if err != nil {
		return nil, err
	}
	all = append(all, start)
	for _, outage := range outages {
		var accepts time.Time
		one, err := f.measure(ctx, fmt.Sprintf("API server away for %s", outage), func(ctx context.Context) error {
			if err := api.Plane().EndAPIServer(); err != nil {
				return err
			}
			if err := child.Pause(ctx, outage); err != nil {
				return err
			}
			return w.restart(ctx, func() error {
				accepts = time.Now()
				return nil
			})
		})
		one.flows.restarted(accepts)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, w.gate.refuse()
}

// instanceUser is the service account of the instances.
const instanceUser = "system:serviceaccount:kube-system:clusterdns"

func permission(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"list", "watch"}}
}

// permit gives permissions to the instances, instead of those of an earlier measurement with the same API server.
func (f *fleet) permit(ctx context.Context, rules ...rbacv1.PolicyRule) error {
	rbac := f.api.Plane().Client().RbacV1()
	meta := metav1.ObjectMeta{Name: "scale"}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
	_, err := rbac.ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = rbac.ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	_, err = rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: instanceUser}},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// start starts the instances. nodes are those of each instance, nil without.
func (f *fleet) start(ctx context.Context, instances int, nodes []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var kubeconfigs []string
	for range instances {
		path, err := f.api.Plane().UserKubeconfig(instanceUser, "system:serviceaccounts", "system:serviceaccounts:kube-system")
		if err != nil {
			return err
		}
		kubeconfigs = append(kubeconfigs, path)
	}
	for some := range slices.Chunk(kubeconfigs, instancesPerProcess) {
		job := instancesJob{Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(child.FreePort())), Kubeconfigs: some}
		if nodes != nil {
			job.Nodes, nodes = nodes[:len(some)], nodes[len(some):]
		}
		text, err := json.Marshal(job)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("instances-%d", len(f.processes))
		path := filepath.Join(f.folder, name+".json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return err
		}
		p, err := child.Start(ctx, f.core, f.folder, name, self, instancesMode, path)
		if err != nil {
			return err
		}
		f.processes, f.addresses = append(f.processes, p), append(f.addresses, job.Address)
	}
	for _, a := range f.addresses {
		if err := child.Await(ctx, startTimeout, "the instances", func() bool { return connects(a) }); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) stop() {
	for _, p := range f.processes {
		p.Stop()
	}
}

// measure has the instances list, and waits until all have a Service that is created afterwards.
func (f *fleet) measure(ctx context.Context, what string, begin func(context.Context) error) (storm, error) {
	s := storm{what: what, codes: map[string]float64{}, flows: sampleFlow(ctx, f.api)}
	err := begin(ctx)
	ready := time.Now()
	if err == nil {
		err = f.awaitService(ctx, &s, ready)
	}
	err = errors.Join(err, s.flows.end(ctx, f.api))
	slices.Sort(s.after)
	return s, err
}

// awaitService creates a Service and waits until all instances have it.
func (f *fleet) awaitService(ctx context.Context, s *storm, ready time.Time) error {
	f.services++
	created := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.cluster.Namespace(0), Name: fmt.Sprintf("storm-%d", f.services)},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	// The API server may have no time for a write while all instances list.
	if err := child.Await(ctx, startTimeout, "the write of a Service", func() bool { return f.api.Apply(ctx, created) == nil }); err != nil {
		return err
	}
	all, failures := make([]instancesDone, len(f.addresses)), make([]error, len(f.addresses))
	var wg sync.WaitGroup
	for i, a := range f.addresses {
		wg.Go(func() { all[i], failures[i] = haveService(ctx, a, created) })
	}
	wg.Wait()
	for _, done := range all {
		for _, at := range done.At {
			s.after = append(s.after, max(0, at.Sub(ready)))
		}
		for code, n := range done.Codes {
			s.codes[code] += n
		}
	}
	return errors.Join(failures...)
}

// haveService waits until all instances of a process have a Service.
func haveService(ctx context.Context, address string, service *corev1.Service) (done instancesDone, err error) {
	err = ask(ctx, address, service.Namespace+"/"+service.Name, func(r io.Reader) error { return json.NewDecoder(r).Decode(&done) })
	return done, err
}

// ask requests a path of a process.
func ask(ctx context.Context, address, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/"+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", request.URL, response.Status)
	}
	return read(response.Body)
}
