package source

import (
	"strings"
	"sync"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/util/validation"
)

var log = clog.NewWithPlugin("kubernetes")

// skippedObjects counts an object with each list and each event.
var skippedObjects = promauto.NewCounterVec(prometheus.CounterOpts{
	Namespace: "nearside",
	Subsystem: "kubernetes",
	Name:      "skipped_objects_total",
	Help:      "Objects, or parts of objects, that no DNS record can carry, by what is wrong with them.",
}, []string{"resource", "reason"})

// skipped reports objects, and parts of objects, that DNS cannot carry. It counts them each time, and logs them once.
type skipped struct {
	mu     sync.Mutex
	logged map[skippedPart]struct{}
}

type skippedPart struct{ resource, object, reason, problem string }

// maxLogged is the maximum number of logged parts; further ones are only counted.
const maxLogged = 1000

// skippedObject reports parts of one object.
type skippedObject struct {
	to                        *skipped
	resource, namespace, name string
}

func (s *skipped) object(resource, namespace, name string) skippedObject {
	return skippedObject{to: s, resource: resource, namespace: namespace, name: name}
}

// named reports whether the object's name and namespace are DNS labels. If not, it counts and logs the object.
func (o skippedObject) named() bool {
	for _, n := range []string{o.namespace, o.name} {
		if n == "" && o.resource == Namespaces {
			continue // namespaces are in no namespace
		}
		if problems := validation.IsDNS1123Label(n); len(problems) > 0 {
			o.part("name", "no DNS label: "+problems[0])
			return false
		}
	}
	return true
}

// part reports that the object, or a part of it, is left out.
func (o skippedObject) part(reason, problem string) {
	skippedObjects.WithLabelValues(o.resource, reason).Inc()
	o.to.mu.Lock()
	defer o.to.mu.Unlock()
	k := skippedPart{o.resource, o.namespace + "/" + o.name, reason, problem}
	if _, ok := o.to.logged[k]; ok || len(o.to.logged) > maxLogged {
		return
	}
	if o.to.logged == nil {
		o.to.logged = map[skippedPart]struct{}{}
	}
	o.to.logged[k] = struct{}{}
	if len(o.to.logged) > maxLogged {
		log.Warning("more objects that DNS cannot carry are counted in nearside_kubernetes_skipped_objects_total and not logged")
		return
	}
	log.Warningf("%s %s: %s left out: %s", o.resource, strings.TrimPrefix(o.namespace+"/"+o.name, "/"), reason, problem)
}
