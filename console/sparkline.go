package console

import (
	"fmt"
	"strings"
)

// sparkline is a small chart, drawn on the server: it needs no script and can be printed.
type sparkline struct {
	Width, Height int
	Line, Area    string // points of the polyline, and of the area below it
	Label         string // what a screen reader says
	LastX, LastY  string
}

// newSparkline scales values into a box. Fewer than two values draw nothing.
func newSparkline(values []float64, width, height int, label string) sparkline {
	s := sparkline{Width: width, Height: height, Label: label}
	if len(values) < 2 {
		return s
	}
	top := 1e-9
	for _, v := range values {
		top = max(top, v)
	}
	const margin = 3.0
	var points []string
	for i, v := range values {
		x := margin + float64(i)*(float64(width)-2*margin)/float64(len(values)-1)
		y := margin + (1-max(v, 0)/top)*(float64(height)-2*margin)
		s.LastX, s.LastY = fmt.Sprintf("%.1f", x), fmt.Sprintf("%.1f", y)
		points = append(points, s.LastX+","+s.LastY)
	}
	s.Line = strings.Join(points, " ")
	bottom := fmt.Sprintf("%.1f", float64(height)-margin+1)
	s.Area = fmt.Sprintf("%.1f,%s %s %s,%s", margin, bottom, s.Line, s.LastX, bottom)
	return s
}
