package main

import (
	"fmt"
	"html"
	"strings"
)

// Sizes of the picture, in pixels.
const (
	width       = 960
	margin      = 16
	floorLabel  = 24
	roomHeight  = 26
	roomGap     = 6
	charWidth   = 7.2
	roomPadding = 16
)

// colors are those of rooms, by the beginning of the path; the first that matches counts.
var colors = []struct{ prefix, fill string }{
	{"cmd/", "#dbe9f6"},
	{"plugin/internal/", "#e2efda"},
	{"plugin/", "#fdebd0"},
}

// draw returns the picture: the highest floor at the top, one room for each package.
func draw(floors [][]string) string {
	var rooms strings.Builder
	y := margin
	for i := len(floors) - 1; i >= 0; i-- {
		fmt.Fprintf(&rooms, `<text x="%d" y="%d" class="floor">%d</text>`+"\n", margin, y+roomHeight-8, i)
		x := margin + floorLabel
		for _, path := range floors[i] {
			w := int(float64(len(path))*charWidth) + roomPadding
			if x+w > width-margin {
				x, y = margin+floorLabel, y+roomHeight+roomGap
			}
			fmt.Fprintf(&rooms, `<rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n",
				x, y, w, roomHeight, fill(path), x+roomPadding/2, y+roomHeight-8, html.EscapeString(path))
			x += w + roomGap
		}
		y += roomHeight + 2*roomGap
		fmt.Fprintf(&rooms, `<line x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", margin, y-roomGap, width-margin, y-roomGap)
	}
	height := y + margin
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="monospace" font-size="12">
<title>Packages of the programs by floor: each imports only packages of lower floors</title>
<style>text{fill:#222}.floor{fill:#888}rect{stroke:#888;stroke-width:.5}line{stroke:#ccc}</style>
<rect width="100%%" height="100%%" fill="#fff" stroke="none"/>
%s</svg>
`, width, height, width, height, rooms.String())
}

func fill(path string) string {
	for _, c := range colors {
		if strings.HasPrefix(path, c.prefix) {
			return c.fill
		}
	}
	return "#eee"
}
