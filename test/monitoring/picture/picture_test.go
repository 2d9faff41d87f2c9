package picture

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestFormat(t *testing.T) {
	two := 2
	for _, tc := range []struct {
		value    float64
		unit     string
		decimals *int
		want     string
	}{
		{0, "s", nil, "0 s"},
		{0.00025, "s", nil, "250 µs"},
		{0.0123, "s", nil, "12.3 ms"},
		{2.5, "s", nil, "2.5 s"},
		{180, "s", nil, "3 min"},
		{0.5, "percentunit", nil, "50 %"},
		{0.98765, "percentunit", &two, "98.77 %"},
		{1536, "bytes", nil, "1.5 KiB"},
		{33554432, "bytes", nil, "32 MiB"},
		{1500, "reqps", nil, "1.5K req/s"},
		{0.25, "ops", nil, "0.25 /s"},
		{12, "short", nil, "12"},
	} {
		if got := format(tc.value, tc.unit, tc.decimals); got != tc.want {
			t.Errorf("%g in %s is %q, want %q", tc.value, tc.unit, got, tc.want)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, tc := range []struct {
		highest float64
		unit    string
		want    []float64
	}{
		{0, "short", []float64{0, 0.25, 0.5, 0.75, 1}},
		{1, "short", []float64{0, 0.25, 0.5, 0.75, 1}},
		{7.3, "short", []float64{0, 2, 4, 6, 8}},
		{950, "reqps", []float64{0, 250, 500, 750, 1000}},
		{3 << 20, "bytes", []float64{0, 1 << 20, 2 << 20, 3 << 20}},
	} {
		got := ticksTo(tc.highest, tc.unit)
		if !slices.EqualFunc(got, tc.want, func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }) || got[len(got)-1] < tc.highest {
			t.Errorf("ticks to %g are %v, want %v", tc.highest, got, tc.want)
		}
	}
}

const dashboard = `{"title": "a < b", "panels": [
	{"id": 1, "type": "row", "title": "Row", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}},
	{"id": 2, "type": "stat", "title": "Number", "gridPos": {"x": 0, "y": 1, "w": 4, "h": 4}, "targets": [{"expr": "number"}],
	 "fieldConfig": {"defaults": {"unit": "percentunit", "thresholds": {"steps": [{"color": "green", "value": null}, {"color": "red", "value": 0.5}]}}}},
	{"id": 3, "type": "timeseries", "title": "Lines", "gridPos": {"x": 4, "y": 1, "w": 8, "h": 7}, "targets": [{"expr": "lines", "legendFormat": "{{who}} & co"}],
	 "fieldConfig": {"defaults": {"unit": "short", "custom": {"stacking": {"mode": "normal"}}}}},
	{"id": 4, "type": "timeseries", "title": "Nothing", "gridPos": {"x": 12, "y": 1, "w": 8, "h": 7}, "targets": [{"expr": "nothing"}]}
]}`

func TestDraw(t *testing.T) {
	var d Dashboard
	kit.Must(t, json.Unmarshal([]byte(dashboard), &d))
	start := time.Unix(1000, 0)
	query := func(expression string, instant bool) ([]Series, error) {
		switch expression {
		case "number":
			if !instant {
				return nil, errors.New("a stat has a range query")
			}
			return []Series{{Points: []Point{{1100, 0.75}}}}, nil
		case "lines":
			return []Series{
				{map[string]string{"who": "x"}, []Point{{1000, 1}, {1050, math.NaN()}, {1100, 3}}},
				{map[string]string{"who": "y"}, []Point{{1000, 2}, {1050, 2}, {1100, 1}}},
			}, nil
		}
		return []Series{{Points: []Point{{1000, math.NaN()}}}}, nil
	}
	svg, empty, err := Draw(&d, start, start.Add(100*time.Second), query)
	kit.Must(t, err)
	if !slices.Equal(empty, []string{"Nothing"}) {
		t.Errorf("without data are %q", empty)
	}
	for _, want := range []string{"a &lt; b", ">Row<", ">75 %<", "#f2495c", ">x &amp; co<", ">y &amp; co<", ">No data<", ">00:16:50<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("there is no %q in\n%s", want, svg)
		}
	}
	// y is on x: 3 at the start, 2 where x has no value, 4 at the end, of 4.
	plot := Place{4, 1, 8, 7}.area()
	top, height := plot.y+32, plot.h-32-24-15
	for _, v := range []float64{3, 2, 4} {
		if want := fmt.Sprintf(" %.1f", top+height*(1-v/4)); !strings.Contains(svg, want) {
			t.Errorf("there is no point at the height of %g (%s)", v, want)
		}
	}
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
	t.Run("an expression that fails", func(t *testing.T) {
		broken := errors.New("parse error")
		if _, _, err := Draw(&d, start, start.Add(time.Second), func(string, bool) ([]Series, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a panel of another type", func(t *testing.T) {
		d.Panels[1].Type = "piechart"
		if _, _, err := Draw(&d, start, start.Add(time.Second), func(string, bool) ([]Series, error) {
			return []Series{{Points: []Point{{1000, 1}}}}, nil
		}); err == nil || !strings.Contains(err.Error(), "piechart") {
			t.Errorf("error %v", err)
		}
	})
}

func TestShrink(t *testing.T) {
	from := image.NewRGBA(image.Rect(0, 0, 100, 100))
	for x := range 100 {
		for y := range 100 {
			c := color.RGBA{255, 255, 255, 255}
			if y < 40 {
				c = color.RGBA{uint8(x * 2), uint8(y * 5), 128, 255} // many colours
			}
			from.Set(x, y, c)
		}
	}
	got := Shrink(from)
	if len(got.Palette) != 256 || got.Bounds() != from.Bounds() {
		t.Fatalf("%d colours, %v", len(got.Palette), got.Bounds())
	}
	if r, g, b, _ := got.At(50, 90).RGBA(); r>>8 != 255 || g>>8 != 255 || b>>8 != 255 {
		t.Errorf("white has become %d %d %d", r>>8, g>>8, b>>8)
	}
	// A rare colour is replaced by the nearest frequent one.
	for _, at := range []image.Point{{3, 3}, {90, 39}, {47, 21}} {
		shown := from.RGBAAt(at.X, at.Y)
		if want := got.Palette.Convert(shown); got.At(at.X, at.Y) != want {
			t.Errorf("at %v there is %v, want %v", at, got.At(at.X, at.Y), want)
		}
	}
}

func TestFill(t *testing.T) {
	got := Fill(`a{job=~"$job", jobs="$jobs"}[$__rate_interval] ${job}`, map[string]string{"job": "x", "jobs": "y", "__rate_interval": "1m"})
	if want := `a{job=~"x", jobs="y"}[1m] x`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOverlaps(t *testing.T) {
	p := Place{4, 4, 4, 4}
	for o, want := range map[Place]bool{{4, 4, 4, 4}: true, {7, 7, 1, 1}: true, {0, 0, 5, 5}: true, {8, 4, 4, 4}: false, {4, 8, 4, 4}: false, {0, 4, 4, 4}: false} {
		if p.Overlaps(o) != want {
			t.Errorf("%+v overlaps %+v: %v", p, o, !want)
		}
	}
}
