package picture

import (
	"fmt"
	"html"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Point is the value of a series at a time, in seconds since 1970.
type Point struct{ T, V float64 }

// Series is one line of a panel.
type Series struct {
	Labels map[string]string
	Points []Point // by time
}

// Query returns the series of an expression between two times, or its value at the end alone.
type Query func(expression string, instant bool) ([]Series, error)

// The measures of the picture, in pixels.
const (
	width   = 1500
	gap     = 8
	unit    = 30 // the height of one unit of the grid
	header  = 46
	padding = 10
)

// The colours of a dark theme.
const (
	background = "#0f1116"
	surface    = "#191c22"
	border     = "#2b2f37"
	bright     = "#e3e5ea"
	faint      = "#9298a5"
)

var palette = []string{"#73bf69", "#f2c94c", "#5794f2", "#ff9830", "#e0556b", "#b877d9", "#4ec9c9", "#c7a26b", "#a5d66f", "#8f9bff", "#ff8fc6", "#9aa0ab"}

// named are the colours of thresholds.
var named = map[string]string{"green": "#73bf69", "red": "#f2495c", "yellow": "#f2c94c", "orange": "#ff9830"}

// canvas collects the picture.
type canvas struct {
	strings.Builder
	start, end time.Time
	query      Query
	empty      []string
}

// Draw draws all panels of a dashboard between two times, as SVG, and returns the titles of those without data.
func Draw(d *Dashboard, start, end time.Time, query Query) (svg string, empty []string, err error) {
	c := &canvas{start: start, end: end, query: query}
	height := 0
	for _, p := range d.Panels {
		height = max(height, header+(p.GridPos.Y+p.GridPos.H)*unit)
	}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="DejaVu Sans, sans-serif">`, width, height+gap)
	c.printf(`<rect width="100%%" height="100%%" fill="%s"/>`, background)
	c.text(gap+4, 30, 19, bright, "start", d.Title)
	c.text(width-gap-4, 30, 13, faint, "end", fmt.Sprintf("%s to %s", start.UTC().Format("15:04:05"), end.UTC().Format("15:04:05 UTC")))
	for _, p := range d.Panels {
		if err := c.panel(p); err != nil {
			return "", nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
	}
	c.printf("</svg>\n")
	return c.String(), c.empty, nil
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(c, format+"\n", args...) }

func (c *canvas) text(x, y, size float64, colour, anchor, text string) {
	c.printf(`<text x="%.1f" y="%.1f" font-size="%g" fill="%s" text-anchor="%s">%s</text>`, x, y, size, colour, anchor, html.EscapeString(text))
}

// area is a part of the picture, in pixels.
type area struct{ x, y, w, h float64 }

func (p Place) area() area {
	column := float64(width-gap) / 24
	return area{gap + float64(p.X)*column, header + float64(p.Y)*unit, float64(p.W)*column - gap, float64(p.H)*unit - gap}
}

func (c *canvas) panel(p Panel) error {
	a := p.GridPos.area()
	if p.Type == "row" {
		c.text(a.x+4, a.y+18, 14, bright, "start", p.Title)
		return nil
	}
	c.printf(`<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="3" fill="%s" stroke="%s"/>`, a.x, a.y, a.w, a.h, surface, border)
	c.text(a.x+padding, a.y+19, 12.5, bright, "start", p.Title)
	var lines []line
	for _, target := range p.Targets {
		all, err := c.query(target.Expr, p.Type == "stat")
		if err != nil {
			return err
		}
		for _, s := range all {
			lines = append(lines, line{name: legend(target.LegendFormat, s.Labels), points: s.Points})
		}
	}
	if !slices.ContainsFunc(lines, line.hasData) {
		c.empty = append(c.empty, p.Title)
		c.text(a.x+a.w/2, a.y+a.h/2+5, 14, faint, "middle", "No data")
		return nil
	}
	switch p.Type {
	case "stat":
		c.stat(p, a, lines[0].points[len(lines[0].points)-1].V)
	case "timeseries":
		c.timeseries(p, a, lines)
	default:
		return fmt.Errorf("panels of the type %s are not known", p.Type)
	}
	return nil
}

// line is a series with its name.
type line struct {
	name   string
	points []Point
}

func (l line) hasData() bool {
	return slices.ContainsFunc(l.points, func(p Point) bool { return !math.IsNaN(p.V) && !math.IsInf(p.V, 0) })
}

var placeholder = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// legend is the name of a series.
func legend(format string, labels map[string]string) string {
	return placeholder.ReplaceAllStringFunc(format, func(m string) string { return labels[placeholder.FindStringSubmatch(m)[1]] })
}

// stat draws one number, in the colour of its threshold.
func (c *canvas) stat(p Panel, a area, value float64) {
	colour := bright
	for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
		if step.Value == nil || value >= *step.Value {
			colour = named[step.Color]
		}
	}
	c.text(a.x+a.w/2, a.y+a.h/2+24, 30, colour, "middle", format(value, p.FieldConfig.Defaults.Unit, p.FieldConfig.Defaults.Decimals))
}

// timeseries draws lines over time, stacked if the panel is, and a legend.
func (c *canvas) timeseries(p Panel, a area, lines []line) {
	slices.SortStableFunc(lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
	defaults := p.FieldConfig.Defaults
	stacked := defaults.Custom.Stacking.Mode == "normal"
	if stacked {
		stack(lines)
	}
	highest := 0.0
	for _, l := range lines {
		for _, point := range l.points {
			if !math.IsNaN(point.V) && !math.IsInf(point.V, 0) {
				highest = max(highest, point.V)
			}
		}
	}
	ticks := ticksTo(highest, defaults.Unit)
	if defaults.Max != nil {
		ticks = []float64{0, *defaults.Max / 4, *defaults.Max / 2, *defaults.Max * 3 / 4, *defaults.Max}
	}
	entries, rows := wrap(lines, a.w-2*padding)
	plot := area{a.x + 62, a.y + 32, a.w - 62 - padding, a.h - 32 - 24 - float64(rows)*15}
	x := func(t float64) float64 {
		return plot.x + plot.w*(t-float64(c.start.Unix()))/c.end.Sub(c.start).Seconds()
	}
	y := func(v float64) float64 { return plot.y + plot.h*(1-v/ticks[len(ticks)-1]) }
	for _, v := range ticks {
		c.printf(`<path d="M%.1f %.1fh%.1f" stroke="%s"/>`, plot.x, y(v), plot.w, border)
		c.text(plot.x-6, y(v)+4, 10.5, faint, "end", format(v, defaults.Unit, nil))
	}
	for i := range 5 {
		t := c.start.Add(c.end.Sub(c.start) * time.Duration(2*i+1) / 10)
		c.text(x(float64(t.Unix())), plot.y+plot.h+15, 10.5, faint, "middle", t.UTC().Format("15:04:05"))
	}
	// The highest of a stack is drawn first, so that those below are over it.
	for i, l := range slices.Backward(lines) {
		c.line(l, colourOf(i), x, y, stacked)
	}
	for i, e := range entries {
		at := area{a.x + padding + e.x, a.y + a.h - float64(rows-e.row)*15 + 4, 0, 0}
		c.printf(`<rect x="%.1f" y="%.1f" width="10" height="3" fill="%s"/>`, at.x, at.y-4, colourOf(i))
		c.text(at.x+14, at.y, 10.5, faint, "start", e.name)
	}
}

func colourOf(i int) string { return palette[i%len(palette)] }

// stack adds each line to those before. All lines of a panel have the same times.
func stack(lines []line) {
	sum := map[float64]float64{}
	for i, l := range lines {
		points := slices.Clone(l.points)
		for j, p := range points {
			if !math.IsNaN(p.V) {
				sum[p.T] += p.V
			}
			points[j].V = sum[p.T]
		}
		lines[i].points = points
	}
}

// line draws a line, with a gap where there is no value, and fills the area below a stacked one.
func (c *canvas) line(l line, colour string, x, y func(float64) float64, stacked bool) {
	var path strings.Builder
	begun, first, last := false, 0.0, 0.0
	flush := func() {
		if !begun {
			return
		}
		if stacked {
			c.printf(`<path d="%s L%.1f %.1f L%.1f %.1f Z" fill="%s" fill-opacity="0.9"/>`, path.String(), last, y(0), first, y(0), mix(colour))
		}
		c.printf(`<path d="%s" fill="none" stroke="%s" stroke-width="1.4"/>`, path.String(), colour)
		path.Reset()
		begun = false
	}
	for _, p := range l.points {
		if math.IsNaN(p.V) || math.IsInf(p.V, 0) {
			flush()
			continue
		}
		last = x(p.T)
		if !begun {
			begun, first = true, last
			fmt.Fprintf(&path, "M%.1f %.1f", last, y(p.V))
			continue
		}
		fmt.Fprintf(&path, " L%.1f %.1f", last, y(p.V))
	}
	flush()
}

// mix is a colour between that of a line and that of the panel.
func mix(colour string) string {
	var line, panel [3]int
	if _, err := fmt.Sscanf(colour, "#%02x%02x%02x", &line[0], &line[1], &line[2]); err != nil {
		return colour
	}
	if _, err := fmt.Sscanf(surface, "#%02x%02x%02x", &panel[0], &panel[1], &panel[2]); err != nil {
		return colour
	}
	for i := range line {
		line[i] = (line[i]*2 + panel[i]*3) / 5
	}
	return fmt.Sprintf("#%02x%02x%02x", line[0], line[1], line[2])
}

// entry is a name of the legend, and where it is.
type entry struct {
	name string
	x    float64
	row  int
}

// legendRows is the maximum number of rows of a legend.
const legendRows = 3

// wrap puts the names of lines into rows. Those that have no room are left out.
func wrap(lines []line, width float64) (entries []entry, rows int) {
	x, row := 0.0, 0
	for _, l := range lines {
		w := 14 + float64(len([]rune(l.name)))*6.6 + 14
		if x > 0 && x+w > width {
			x, row = 0, row+1
		}
		if row == legendRows {
			break
		}
		entries = append(entries, entry{l.name, x, row})
		x += w
	}
	return entries, min(row+1, legendRows)
}
