package picture

import (
	"cmp"
	"image"
	"image/color"
	"maps"
	"slices"
)

// Shrink returns a picture with at most 256 colours, the most frequent ones, so that its PNG has a third of the size.
// Drawings have few colours, and many shades at the edges of lines and letters.
func Shrink(from image.Image) *image.Paletted {
	count := map[color.RGBA]int{}
	bounds := from.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[rgba(from, x, y)]++
		}
	}
	byCount := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], cmp.Compare(value(a), value(b)))
	})
	var palette color.Palette
	similar := map[color.RGBA]bool{}
	for _, c := range byCount {
		// Colours that differ only in the lowest three bits look the same.
		if s := (color.RGBA{c.R | 7, c.G | 7, c.B | 7, 255}); !similar[s] && len(palette) < 256 {
			similar[s] = true
			palette = append(palette, c)
		}
	}
	nearest := map[color.RGBA]uint8{}
	to := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := rgba(from, x, y)
			i, known := nearest[c]
			if !known {
				i = uint8(palette.Index(c))
				nearest[c] = i
			}
			to.SetColorIndex(x, y, i)
		}
	}
	return to
}

// rgba is the colour of a pixel.
func rgba(from image.Image, x, y int) color.RGBA {
	c := color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)
	c.A = 255 // drawings have a background
	return c
}

func value(c color.RGBA) int { return int(c.R)<<16 | int(c.G)<<8 | int(c.B) }
