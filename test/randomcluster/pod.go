package randomcluster

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod returns a pod with up to two addresses in one of the phases; some are on
// the network of their node.
func (m maker) pod(namespace, name string) *corev1.Pod {
	node := m.IntN(len(nodeNames))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: m.labels()},
		Spec: corev1.PodSpec{
			NodeName:    nodeNames[node],
			HostNetwork: m.chance(15),
			Containers:  []corev1.Container{{Name: "main", Image: "registry.example/main:1"}},
		},
	}
	phases := []corev1.PodPhase{corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown}
	pod.Status.Phase = corev1.PodRunning
	if m.chance(30) {
		pod.Status.Phase = phases[m.IntN(len(phases))]
	}
	if m.chance(10) {
		deleted, grace := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), int64(30)
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &deleted, &grace
	}
	if pod.Status.Phase == corev1.PodPending && m.chance(60) {
		pod.Spec.NodeName = ""
		return pod // no address yet
	}
	address := m.podIP
	if pod.Spec.HostNetwork {
		address = m.nodeIP
	}
	pod.Status.HostIP = m.nodeIP(false)
	switch m.IntN(5) {
	case 0:
		pod.Status.PodIPs = []corev1.PodIP{{IP: address(true)}}
	case 1, 2:
		pod.Status.PodIPs = []corev1.PodIP{{IP: address(false)}, {IP: address(true)}}
	default:
		pod.Status.PodIPs = []corev1.PodIP{{IP: address(false)}}
	}
	pod.Status.PodIP = pod.Status.PodIPs[0].IP
	return pod
}
