package deploy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/netns"
)

// volume is a folder of a volume with the owner and the mode that the kubelet gives to it. The folder is in one that every user can
// read.
func volume(t *testing.T, pod corev1.PodSpec) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "nearside-volume-")
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			t.Error(err)
		}
	})
	i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "snapshot" })
	if i < 0 {
		t.Fatal("no volume snapshot")
	}
	var mode os.FileMode
	group := 0
	switch v := pod.Volumes[i]; {
	case v.EmptyDir != nil:
		mode = 0o777
	case v.HostPath != nil && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate:
		mode = 0o755
	case v.PersistentVolumeClaim != nil: // of a driver that applies fsGroup
		mode, group = 0o775|os.ModeSetgid, int(*pod.SecurityContext.FSGroup)
	default:
		t.Fatalf("volume %v", v)
	}
	folder := filepath.Join(parent, "volume")
	kit.Must(t, errors.Join(os.Chmod(parent, 0o755), os.Mkdir(folder, 0o700), os.Chown(folder, 0, group), os.Chmod(folder, mode)))
	return folder
}

// confined returns a program that runs clusterdns with the user, the groups and the capabilities of its container, and with a copy of
// its Corefile that the user can read.
func confined(t *testing.T, pod corev1.PodSpec, folder string) string {
	t.Helper()
	c, parent := pod.SecurityContext, filepath.Dir(folder)
	groups := "--clear-groups"
	if c.FSGroup != nil {
		groups = "--groups " + strconv.FormatInt(*c.FSGroup, 10)
	}
	script := fmt.Sprintf("#!/bin/sh\nset -e\ninstall %[6]s %[1]s\ninstall -m 644 \"$2\" %[1]s/Corefile\n"+
		"exec setpriv --reuid %[2]d --regid %[3]d %[4]s --bounding-set %[5]s --inh-caps -all --no-new-privs --pdeathsig KILL %[1]s/clusterdns -conf %[1]s/Corefile\n",
		parent, *c.RunAsUser, *c.RunAsGroup, groups, boundingSet(pod.Containers[0]), daemon.Program(t, "clusterdns"))
	path := filepath.Join(parent, "run")
	kit.Must(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// TestSnapshotVolume runs clusterdns with the rights of its container and the volume of its pod, kills it, and starts it again while
// the API server responds with errors: it answers from its snapshot.
func TestSnapshotVolume(t *testing.T) {
	netns.Require(t, "setpriv")
	for _, tc := range []struct {
		name, component string
		user            int64 // instead of the container's, if it is not 0
		refused         bool
	}{
		{name: "emptyDir"},
		{name: "folder of the node", component: "snapshot-host"},
		{name: "claim", component: "snapshot-claim"},
		{name: "folder of the node without root", component: "snapshot-host", user: 65532, refused: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var components []string
			if tc.component != "" {
				components = []string{"overlays/components/" + tc.component}
			}
			all := decoded(t, kustomize(t, mine(t, "clusterdns", components...)))
			pod := find[*appsv1.Deployment](t, all, "Deployment clusterdns").Spec.Template.Spec
			if tc.user != 0 {
				pod.SecurityContext.RunAsUser = &tc.user
			}
			folder := volume(t, pod)
			api := cluster(t)
			kit.Must(t, api.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "4"}}))
			corefile := find[*corev1.ConfigMap](t, all, "ConfigMap clusterdns").Data["Corefile"]
			corefile = onLoopback(t, strings.ReplaceAll(corefile, snapshotFolder, folder), api.URL(), upstream(t, "192.0.2.80"))
			path := confined(t, pod, folder)
			p := daemon.Start(t, path, corefile)
			awaitAnswer(t, p.Addr, service.name, service.want)
			if tc.refused {
				awaitOutput(t, p, "records cannot be written")
				return
			}
			verifySnapshot(t, p, path, corefile, folder, api)
		})
	}
}

// verifySnapshot waits for the snapshot of a process, kills the process, and starts it again without the API server.
func verifySnapshot(t *testing.T, p *daemon.Process, path, corefile, folder string, api *kubeapi.Server) {
	t.Helper()
	records := filepath.Join(folder, "records")
	kit.Succeeds(t, deadline, "the snapshot", func() error { _, err := os.Stat(records); return err })
	p.Signal(t, syscall.SIGKILL)
	if _, err := p.Wait(deadline); err != nil {
		t.Fatal(err)
	}
	api.Refuse(true)
	p = daemon.Start(t, path, corefile)
	awaitOutput(t, p, "answering from snapshot "+records)
	awaitAnswer(t, p.Addr, service.name, service.want)
	if info, err := os.Stat(records); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// awaitOutput waits until a process has logged a text.
func awaitOutput(t *testing.T, p *daemon.Process, want string) {
	t.Helper()
	kit.Succeeds(t, deadline, "the log", func() error {
		if !strings.Contains(p.Output(), want) {
			return fmt.Errorf("no %q in\n%s", want, p.Output())
		}
		return nil
	})
}
