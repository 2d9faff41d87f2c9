package source

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestWaitForNames(t *testing.T) {
	for _, tc := range []struct {
		text string
		want uint16 // milliseconds
		logs bool
	}{
		{"4s", 4000, false}, {"500ms", 500, false}, {"1.5s", 1500, false}, {"1ns", 1, false}, {"3999.5ms", 4000, false},
		{"0s", 0, false}, {"4.1s", 4000, false}, {"2540400h", 4000, false},
		{"", 0, true}, {"4", 0, true}, {"-1s", 0, true}, {"four", 0, true}, {"3000000h", 0, true},
	} {
		t.Run(tc.text, func(t *testing.T) {
			logged := kit.Logged(t)
			o := &corev1.Service{ObjectMeta: meta("shop", "db"), Spec: corev1.ServiceSpec{ClusterIP: "None"}}
			o.Annotations = map[string]string{AnnotationWaitForNames: tc.text}
			s := NewStripper(Options{})
			for range 2 {
				if got := s.Service(o).Wait; got != tc.want {
					t.Errorf("%d ms, want %d", got, tc.want)
				}
			}
			lines := logged.Count("\n")
			if !tc.logs && lines > 0 {
				t.Errorf("logged:\n%s", logged)
			}
			if tc.logs && (lines != 1 || !strings.Contains(logged.String(), "shop/db") || !strings.Contains(logged.String(), "want 0s to 4s")) {
				t.Errorf("logged:\n%s", logged)
			}
			o.Spec.ClusterIP = "10.0.0.1"
			if got := s.Service(o).Wait; got != 0 {
				t.Errorf("%d ms for a ClusterIP", got)
			}
		})
	}
}
