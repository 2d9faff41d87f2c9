package source

import (
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// bootedAt is when the node of these tests was booted.
var bootedAt = time.Unix(1_000_000, 0)

func runs(since time.Duration) corev1.ContainerStatus {
	started := metav1.NewTime(bootedAt.Add(since))
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}}
}

func waits() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
}

func ended() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}
}

func sandbox(is corev1.ConditionStatus) corev1.PodCondition {
	return corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: is}
}

// TestPodEnding lists the states in which a pod may have lost its addresses, and those in which it has them.
func TestPodEnding(t *testing.T) {
	statuses := func(all ...corev1.ContainerStatus) []corev1.ContainerStatus { return all }
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		ending bool
	}{
		"says nothing of containers":     {func(*corev1.Pod) {}, false},
		"runs":                           {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(runs(time.Hour)) }, false},
		"runs since the boot":            {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(runs(0)) }, false},
		"ran before the boot":            {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(runs(-time.Second)) }, true},
		"one of two runs since the boot": {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(runs(-time.Hour), runs(time.Second)) }, false},
		"one of two runs":                {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(ended(), runs(time.Second)) }, false},
		"all have ended": {func(o *corev1.Pod) {
			o.Status.InitContainerStatuses, o.Status.ContainerStatuses = statuses(ended()), statuses(ended(), ended())
		}, true},
		"waits": {func(o *corev1.Pod) { o.Status.ContainerStatuses = statuses(waits()) }, true},
		"initializes": {func(o *corev1.Pod) {
			o.Status.InitContainerStatuses, o.Status.ContainerStatuses = statuses(runs(time.Second)), statuses(waits())
		}, false},
		"is looked into": {func(o *corev1.Pod) { o.Status.EphemeralContainerStatuses = statuses(runs(time.Second)) }, false},
		"has a sandbox":  {func(o *corev1.Pod) { o.Status.Conditions = []corev1.PodCondition{sandbox(corev1.ConditionTrue)} }, false},
		"has no sandbox": {func(o *corev1.Pod) { o.Status.Conditions = []corev1.PodCondition{sandbox(corev1.ConditionFalse)} }, true},
		"another condition": {func(o *corev1.Pod) {
			o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		}, false},
		"runs, without a sandbox": {func(o *corev1.Pod) {
			o.Status.ContainerStatuses = statuses(runs(time.Hour))
			o.Status.Conditions = []corev1.PodCondition{sandbox(corev1.ConditionFalse)}
		}, true},
		"is being deleted": {func(o *corev1.Pod) {
			o.DeletionTimestamp = &metav1.Time{Time: bootedAt.Add(time.Hour)} // after a grace period
			o.Status.ContainerStatuses = statuses(runs(time.Second))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &corev1.Pod{ObjectMeta: meta("shop", "web")}
			o.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.1"}}
			tc.change(o)
			options := Options{Pods: true, SearchPaths: true, Booted: bootedAt}
			r := NewStripper(options).Pod(o)
			if r.Ending != tc.ending {
				t.Errorf("ending is %t", r.Ending)
			}
			options.SearchPaths = false
			if r := NewStripper(options).Pod(o); r.Ending {
				t.Error("ending without search paths")
			}
		})
	}
	t.Run("the time of the boot is not known", func(t *testing.T) {
		o := &corev1.Pod{ObjectMeta: meta("shop", "web")}
		o.Status.ContainerStatuses = []corev1.ContainerStatus{runs(-time.Hour)}
		if r := NewStripper(Options{SearchPaths: true}).Pod(o); r.Ending {
			t.Error("ending")
		}
	})
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
		o := &corev1.Pod{ObjectMeta: meta("shop", "web"), Status: corev1.PodStatus{Phase: phase}}
		if r := NewStripper(Options{SearchPaths: true}).Pod(o); r != nil {
			t.Errorf("%s: record %+v, want none", phase, r)
		}
	}
}

// TestPodSearchPath: the fields that a search list depends on are stored with SearchPaths, and not without.
func TestPodSearchPath(t *testing.T) {
	config := func(searches ...string) *corev1.PodDNSConfig { return &corev1.PodDNSConfig{Searches: searches} }
	for _, tc := range []struct {
		policy corev1.DNSPolicy
		config *corev1.PodDNSConfig
		want   *index.PodDNS
	}{
		{corev1.DNSClusterFirst, nil, nil},
		{"", nil, nil},
		{"Sometimes", nil, nil},
		{corev1.DNSClusterFirst, config(), nil},
		{corev1.DNSClusterFirst, config("a.example", "."), &index.PodDNS{Policy: "ClusterFirst", Searches: []string{"a.example", "."}}},
		{"Sometimes", config("a.example"), &index.PodDNS{Policy: "ClusterFirst", Searches: []string{"a.example"}}},
		{corev1.DNSClusterFirstWithHostNet, nil, &index.PodDNS{Policy: "ClusterFirstWithHostNet"}},
		{corev1.DNSDefault, config(), &index.PodDNS{Policy: "Default"}},
		{corev1.DNSNone, config("A.Example."), &index.PodDNS{Policy: "None", Searches: []string{"A.Example."}}},
	} {
		o := &corev1.Pod{ObjectMeta: meta("shop", "web")}
		o.Labels = map[string]string{"app": "web"}
		o.Spec.DNSPolicy, o.Spec.DNSConfig, o.Spec.HostNetwork = tc.policy, tc.config, true
		o.Status.PodIPs = []corev1.PodIP{{IP: "10.1.0.1"}, {IP: "fd00::1"}}
		want := &index.Pod{
			Namespace: "shop", Name: "web", HostNetwork: true, DNS: tc.want,
			IPs: []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd00::1")}, Ndots: 5,
		}
		if tc.policy == corev1.DNSDefault || tc.policy == corev1.DNSNone {
			want.Ndots = 1
		}
		strip := func(o *corev1.Pod, options Options) *index.Pod {
			return NewStripper(options).Pod(o)
		}
		if got := strip(o, Options{Pods: true, PodsOnly: true, SearchPaths: true}); !got.Equal(want) {
			t.Errorf("policy %q, %v: record %+v with %+v, want %+v", tc.policy, tc.config, got, got.DNS, want.DNS)
		}
		want.Labels = index.NewPodLabels(o.Labels)
		if got := strip(o, Options{Pods: true, SearchPaths: true}); !got.Equal(want) {
			t.Errorf("policy %q, %v: among others the record is %+v", tc.policy, tc.config, got)
		}
		want.HostNetwork, want.DNS, want.Ndots = false, nil, 0
		if got := strip(o, Options{Pods: true}); !got.Equal(want) {
			t.Errorf("policy %q, %v: without search paths the record is %+v", tc.policy, tc.config, got)
		}
	}
}

// TestPodNdots has the options ndots of dnsConfig, and those without one.
func TestPodNdots(t *testing.T) {
	value := func(values ...string) (options []corev1.PodDNSConfigOption) {
		for _, v := range values {
			options = append(options, corev1.PodDNSConfigOption{Name: "ndots", Value: &v})
		}
		return options
	}
	for name, tc := range map[string]struct {
		policy  corev1.DNSPolicy
		options []corev1.PodDNSConfigOption
		want    uint8
	}{
		"default":         {"", nil, 5},
		"of dnsConfig":    {corev1.DNSClusterFirst, value("1"), 1},
		"0":               {corev1.DNSClusterFirst, value("0"), 0},
		"the last one":    {corev1.DNSClusterFirst, value("1", "2"), 2},
		"more than 15":    {corev1.DNSClusterFirst, value("99"), 15},
		"invalid":         {corev1.DNSClusterFirst, value("some", "-1"), 5},
		"without a value": {corev1.DNSClusterFirst, []corev1.PodDNSConfigOption{{Name: "ndots"}}, 5},
		"another option":  {corev1.DNSClusterFirst, []corev1.PodDNSConfigOption{{Name: "timeout", Value: value("1")[0].Value}}, 5},
		"None":            {corev1.DNSNone, nil, 1},
		"None with 3":     {corev1.DNSNone, value("3"), 3},
		"Default":         {corev1.DNSDefault, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			o := &corev1.Pod{Spec: corev1.PodSpec{DNSPolicy: tc.policy, DNSConfig: &corev1.PodDNSConfig{Options: tc.options}}}
			if got := ndots(o); got != tc.want {
				t.Errorf("ndots %d, want %d", got, tc.want)
			}
		})
	}
}
