package main

import (
	"cmp"
	"image"
	"image/color"
	"slices"
)

// commonest is a palette of 256 colours that a picture has most of, and one of each kind. Text on plain areas has
// few others, and nobody sees the difference.
func commonest(img image.Image) color.Palette {
	counts := make(map[color.RGBA]int)
	for y := img.Bounds().Min.Y; y < img.Bounds().Max.Y; y++ {
		for x := img.Bounds().Min.X; x < img.Bounds().Max.X; x++ {
			counts[color.RGBAModel.Convert(img.At(x, y)).(color.RGBA)]++
		}
	}
	colors := make([]color.RGBA, 0, len(counts))
	for c := range counts {
		colors = append(colors, c)
	}
	slices.SortFunc(colors, func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	// first one of each kind of colour, so that a single red number stays red
	kinds := make(map[[3]uint8]bool)
	rank := make(map[color.RGBA]int, len(colors))
	for i, c := range colors {
		rank[c] = len(colors) + i
		if kind := [3]uint8{c.R >> 5, c.G >> 5, c.B >> 5}; !kinds[kind] {
			kinds[kind], rank[c] = true, i
		}
	}
	slices.SortFunc(colors, func(a, b color.RGBA) int { return rank[a] - rank[b] })
	p := make(color.Palette, 0, 256)
	for _, c := range colors[:min(256, len(colors))] {
		p = append(p, c)
	}
	return p
}
