package main

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const two = "cpu  100 10 50 1000 20 1 30 40 5 6\ncpu0 50 5 25 500 10 0 15 20 0 0\ncpu1 50 5 25 500 10 1 15 20 5 6\nintr 1 2\n"
	for _, c := range []struct {
		name, text string
		want       time.Duration
		processors int
		err        string
	}{
		{"two processors", two, 10600 * time.Millisecond, 2, ""},
		{"no total", "intr 1\n", 0, 0, "/proc/stat"},
		{"no number", strings.Replace(two, "1000", "x", 1), 0, 0, "/proc/stat"},
		{"cut short", "cpu  100 10 50 1000\n", 0, 0, "/proc/stat"},
		{"no processor", "cpu  100 10 50 1000 20 1 30 40 5 6\n", 0, 0, "no line of a processor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseStat(c.text)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want %q in it", err, c.err)
				}
				return
			}
			if err != nil || got.off != c.want || got.processors != c.processors {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestMachineTime(t *testing.T) {
	began := time.Now()
	before := machineTime{at: began, processors: 2, off: time.Second}
	after := machineTime{at: began.Add(10 * time.Second), processors: 2, off: 13 * time.Second}
	if got := after.used(before); got != 8*time.Second {
		t.Errorf("used %v of 20s, of which 12s are off", got)
	}
	if got := microseconds(8*time.Second, 1000000); got != 8 {
		t.Errorf("%v us", got)
	}
	if got := microPercentile([]time.Duration{3 * time.Microsecond, 5 * time.Microsecond}, 50); math.Abs(got-3) > 1e-9 {
		t.Errorf("median %v us", got)
	}
	if got := ninth([]float64{9, 1, 2, 3, 4, 5, 6, 7, 8, 100, 10}); got != 10 {
		t.Errorf("nine of ten are up to %v", got)
	}
}

// TestAddShares: the share of the load is that of the same round and family, and figures of a machine that was not quiet are
// left out.
func TestAddShares(t *testing.T) {
	b := bench{results: results{}}
	for _, round := range []podRound{
		{
			nameDropped: {4, 3, 0, true}, nameDropped6: {5, 4, 0, true}, nameInKernel: {4.5, 3.25, 0.5, true},
			nameInKernel6: {5.75, 4.5, 0.5, true}, nameEcho: {9, 6, 2, false},
		},
		{nameDropped: {8, 3.5, 0, false}, nameInKernel: {4.5, 4, 0.5, true}, nameEcho: {9, 6, 2, true}},
		{nameInKernel: {4.5, 4, 0.5, true}},
	} {
		b.results.addShares(round, rateFigures)
	}
	for _, c := range []struct {
		what, name string
		want       []float64
	}{
		{kernelMachine, nameDropped, []float64{4}},
		{kernelMachine, nameInKernel, []float64{4.5, 4.5, 4.5}},
		{kernelMachine, nameEcho, []float64{9}},
		{kernelBeyond, nameInKernel, []float64{0.5}},
		{kernelBeyond, nameInKernel6, []float64{0.75}},
		{kernelBeyond, nameEcho, nil},
		{kernelBeyond, nameDropped, nil},
		{kernelProcesses, nameDropped, []float64{3, 3.5}},
		{kernelOwn, nameInKernel, []float64{0.25, 0.5}},
		{kernelOwn, nameInKernel6, []float64{0.5}},
		{kernelOwn, nameEcho, []float64{3, 2.5}},
		{kernelServer, nameEcho, []float64{2, 2}},
	} {
		got := b.results[c.what][c.name]
		if len(got) != len(c.want) {
			t.Errorf("%s of %s: %v, want %v", c.what, c.name, got, c.want)
			continue
		}
		for i := range got {
			if math.Abs(got[i]-c.want[i]) > 1e-9 {
				t.Errorf("%s of %s: %v, want %v", c.what, c.name, got, c.want)
			}
		}
	}
}

// TestReportKernel writes the tables of the part.
func TestReportKernel(t *testing.T) {
	b := bench{settings: settings{parts: []string{partKernel}, rounds: 1, flood: 30}, results: results{}}
	for _, figures := range []podFigures{rateFigures, floodFigures} {
		b.results.addShares(podRound{
			nameDropped: {3, 3, 0, true}, nameInKernel: {3.5, 3.4, 0.25, true},
			nameEcho: {6, 5, 2, true}, nameUnbound: {7, 6, 3, true},
		}, figures)
	}
	add := func(what string, figures map[string]float64) {
		for name, v := range figures {
			b.results.add(what, name, v)
		}
	}
	add(kernelP50, map[string]float64{nameInKernel: 10, nameFastPath: 30})
	add(kernelShare, map[string]float64{nameInKernel: 99.99})
	add(floodSent, map[string]float64{nameInKernel: 3000000, nameEcho: 3000000})
	add(floodLost, map[string]float64{nameInKernel: 1, nameEcho: 0})
	add(kernelOther, map[string]float64{"": 20})
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"100000 queries/s of a pod for 30 s", "| 10.0 | 1.00 | missing |\n", "| 30.0 | 3.00 | missing |\n",
		"beyond the load | 0.40 us | yes |", "1/4 of the echo | 0.40 us, 1/5.0 of 2.00 us | yes |",
		"1/5 of Unbound | 0.40 us, 1/7.5 of 3.00 us | yes |",
		"fast path's | 10.00 us, 1/3.0 of 30.00 us | yes |", "none lost | 1 lost | **no** |",
		"Other load of the machine before the measurements: 20.0",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
}
