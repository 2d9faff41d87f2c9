package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/generated"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// world is a cluster in an API server.
type world struct {
	size
	api  *kubeapi.Server
	gate *gate
	// generation counts the rolling updates. All endpoints get other addresses in each.
	generation int
	// changes counts the addresses of the timed endpoint, 0 while it has that of the generation.
	changes int
}

// batch is the number of objects that are written at once.
const batch = 500

// newWorld writes a cluster into an API server.
func newWorld(api *kubeapi.Server, s size) (*world, error) {
	w := &world{size: s, api: api}
	var objects []runtime.Object
	err := s.cluster.Each(func(o runtime.Object) error {
		if service, ok := o.(*corev1.Service); ok && service.Spec.ClusterIP != corev1.ClusterIPNone {
			objects = append(objects, allocation(service))
		}
		if objects = append(objects, o); len(objects) < batch {
			return nil
		}
		defer func() { objects = nil }()
		return api.Load(objects...)
	})
	if err != nil {
		return nil, err
	}
	if err := api.Load(objects...); err != nil {
		return nil, err
	}
	w.gate, err = newGate(strings.TrimPrefix(api.Plane().URL(), "https://"))
	return w, err
}

// allocation returns the IPAddress of a Service, as the API server creates it with the Service. Without them it repairs all
// Services when it starts, which takes more than the minute after which it gives up. One that is older than a minute and whose Service
// the API server has not seen yet is deleted.
func allocation(s *corev1.Service) *networkingv1.IPAddress {
	return &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: s.Spec.ClusterIP, CreationTimestamp: metav1.Now(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: kubeapi.Services, Namespace: s.Namespace, Name: s.Name}},
	}
}

// podIP returns the address of a pod in a generation: 10.128.0.0/9 and 10.0.0.0/9 in turn.
func (w *world) podIP(pod, generation int) string {
	b := netip.MustParseAddr(w.cluster.PodIP(pod)).As4()
	if generation%2 == 1 {
		b[1] ^= 128
	}
	return netip.AddrFrom4(b).String()
}

// rolled returns the EndpointSlices of a Service after the first steps of the next rolling update.
func (w *world) rolled(service, steps int) []*discoveryv1.EndpointSlice {
	slices := w.cluster.SliceObjects(service)
	pod := w.cluster.Service(service).FirstPod
	for _, s := range slices {
		s.Annotations[corev1.EndpointsLastChangeTriggerTime] = time.Now().UTC().Format(time.RFC3339Nano)
		for i := range s.Endpoints {
			generation := w.generation
			if i%w.steps < steps {
				generation++
			}
			s.Endpoints[i].Addresses[0] = w.podIP(pod, generation)
			pod++
		}
	}
	return slices
}

// update is the rolling update: it changes the address of every endpoint, in the time of the size unless the API server is
// slower. It returns the number of writes.
func (w *world) update(ctx context.Context) (events int, err error) {
	began, total := time.Now(), w.steps*w.cluster.Services
	var objects []runtime.Object
	for n := range total {
		for _, s := range w.rolled(n%w.cluster.Services, n/w.cluster.Services+1) {
			objects = append(objects, s)
		}
		// A hundred batches at least, so that the writes are spread over the time.
		if len(objects) < batch && (n+1)%max(1, total/100) != 0 && n+1 < total {
			continue
		}
		if err := child.Pause(ctx, time.Until(began.Add(w.roll*time.Duration(n)/time.Duration(total)))); err != nil {
			return events, err
		}
		if err := w.api.Put(objects...); err != nil {
			return events, err
		}
		events += len(objects)
		objects = nil
	}
	w.generation, w.changes = w.generation+1, 0
	return events, nil
}

// timed returns the Service whose changes are timed, the last headless one, and its number.
func (w *world) timed() (generated.Service, int) {
	for n := w.cluster.Services - 1; ; n-- {
		if s := w.cluster.Service(n); s.Headless {
			return s, n
		}
	}
}

// timedName is the name of its last endpoint, whose address changes.
func (w *world) timedName() string {
	s, _ := w.timed()
	return s.Hostname(s.Endpoints-1) + "." + serviceName(s)
}

// timedAddress is the address of that endpoint.
func (w *world) timedAddress() string {
	s, _ := w.timed()
	if w.changes == 0 {
		return w.podIP(s.FirstPod+s.Endpoints-1, w.generation)
	}
	return fmt.Sprintf("198.18.%d.%d", w.changes/250%256, 1+w.changes%250)
}

// change gives that endpoint another address.
func (w *world) change(ctx context.Context) error {
	w.changes++
	_, err := w.write(ctx)
	return err
}

// write writes the address of that endpoint through the API server, and returns when it has responded.
func (w *world) write(ctx context.Context) (time.Time, error) {
	_, n := w.timed()
	all := w.rolled(n, 0)
	last := all[len(all)-1]
	last.ObjectMeta = metav1.ObjectMeta{Namespace: last.Namespace, Name: last.Name, Labels: last.Labels}
	last.Endpoints[len(last.Endpoints)-1].Addresses[0] = w.timedAddress()
	err := w.api.Apply(ctx, last)
	return time.Now(), err
}

// restart restarts the API server, calls accepts when it accepts connections, and waits until it is ready.
func (w *world) restart(ctx context.Context, accepts func() error) error {
	plane := w.api.Plane()
	if err := plane.EndAPIServer(); err != nil {
		return err
	}
	if err := plane.LaunchAPIServer(); err != nil {
		return err
	}
	if err := child.Await(ctx, startTimeout, "connections to the API server", func() bool { return connects(w.gate.backend) }); err != nil {
		return err
	}
	if err := accepts(); err != nil {
		return err
	}
	return child.Await(ctx, startTimeout, "the API server", func() bool {
		_, err := plane.Client().CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil
	})
}
