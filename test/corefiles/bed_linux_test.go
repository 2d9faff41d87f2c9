package corefiles

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/miekg/dns"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// bed is a machine with a cluster and the internet, for programs that believe to run in a pod.
type bed struct {
	cluster *controlplane.ControlPlane
	account string // folder with the files of the service account
	outside *netns.Namespace
	host    string // of the API server
	port    string
}

// newBed starts an API server, and a namespace that has every address, with a DNS server that answers for all names.
func newBed(t *testing.T) *bed {
	t.Helper()
	netns.Require(t, "ip", "unshare", "mount")
	b := &bed{cluster: controlplane.Start(t), account: t.TempDir(), outside: netns.Add(t, "outside")}
	var err error
	if b.host, b.port, err = net.SplitHostPort(b.cluster.Config().Host[len("https://"):]); err != nil {
		t.Fatal(err)
	}
	b.newAccount(t)
	b.newObjects(t)
	b.outside.Run(t, "ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "main")
	b.outside.Run(t, "ip", "-6", "route", "add", "local", "::/0", "dev", "lo", "table", "main")
	b.serve(t)
	return b
}

// newAccount writes the files of a service account that may read everything.
func (b *bed) newAccount(t *testing.T) {
	t.Helper()
	ctx, client := context.Background(), b.cluster.Client()
	const namespace, name = "kube-system", "corefiles"
	_, err := client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	kit.Must(t, err)
	token, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	kit.Must(t, err)
	authority := kit.Read(t, b.cluster.CAFile())
	for file, text := range map[string]string{"token": token.Status.Token, "ca.crt": authority, "namespace": namespace} {
		kit.Must(t, os.WriteFile(filepath.Join(b.account, file), []byte(text), 0o600))
	}
}

// newObjects creates the Services that the questions name.
func (b *bed) newObjects(t *testing.T) {
	t.Helper()
	service := func(namespace, name, address string) {
		_, err := b.cluster.Client().CoreV1().Services(namespace).Create(context.Background(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}, metav1.CreateOptions{})
		kit.Must(t, err)
	}
	service("default", "web", "10.96.0.80")
	service("kube-system", "kube-dns", "10.96.0.10")
}

// serve answers for all names and at all addresses of the outside.
func (b *bed) serve(t *testing.T) {
	t.Helper()
	b.outside.Serve(t, "[::]:53", func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.RecursionAvailable = true
		name := q.Question[0].Name
		switch header := (dns.RR_Header{Name: name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET, Ttl: 60}); q.Question[0].Qtype {
		case dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, byte(len(name)))}}
		case dns.TypeAAAA:
			if len(name)%2 == 0 {
				m.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: net.ParseIP(fmt.Sprintf("2001:db8::%x", len(name)))}}
			}
		}
		if err := w.WriteMsg(m); err != nil {
			t.Logf("reply to a program: %v", err)
		}
	})
}
