package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// report prints all figures and how far the goals are reached, and writes them if asked to.
func report(o options, rs *results) error {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nworkload\tdatabase\twhat\tmedian\tmin\tmax\tunit")
	for _, r := range rs.list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.table(), r.dialect, r.name, figure(r.median()), figure(slices.Min(r.values)),
			figure(slices.Max(r.values)), r.unit)
	}
	fmt.Fprintln(t, "\ngoal\tdatabase\tfigure\twanted\t")
	for _, g := range goals() {
		if v := g.value(rs); v > 0 {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", g.text, g.dialect, g.figure(v), g.wanted(), g.verdict(v, "MISSED"))
		}
	}
	if err := t.Flush(); err != nil || o.write == "" {
		return err
	}
	return write(o, rs)
}

const (
	figuresBegin = "<!-- figures: written by make bench -->"
	figuresEnd   = "<!-- end of figures -->"
)

// write puts the tables between the two marks of a Markdown file, and the plot beside the file. What
// stands there of workloads that were not run on a database this time stays.
func write(o options, rs *results) error {
	text, err := os.ReadFile(o.write)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), figuresBegin)
	rest, after, ok2 := strings.Cut(rest, figuresEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", o.write, figuresBegin, figuresEnd)
	}
	rs.keep(rest)
	var b strings.Builder
	b.WriteString(before + figuresBegin + "\n\n")
	markdown(&b, rs)
	b.WriteString(figuresEnd + after)
	if err := os.WriteFile(o.write, []byte(b.String()), 0o644); err != nil { //nolint:gosec // a document
		return err
	}
	var svg strings.Builder
	plot(&svg, rs)
	return os.WriteFile(strings.TrimSuffix(o.write, filepath.Ext(o.write))+".svg", []byte(svg.String()), 0o644) //nolint:gosec // a picture
}

func markdown(w io.Writer, rs *results) {
	fmt.Fprint(w, "| goal | database | figure | wanted | |\n|---|---|---|---|---|\n")
	for _, g := range goals() {
		if v := g.value(rs); v > 0 {
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", g.text, g.dialect, g.figure(v), g.wanted(), g.verdict(v, "**missed**"))
		}
	}
	fmt.Fprint(w, "\n| workload | database | what | median | min – max | unit |\n|---|---|---|---|---|---|\n")
	for _, r := range rs.list {
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s – %s | %s |\n", r.table(), r.dialect, r.name, figure(r.median()),
			figure(slices.Min(r.values)), figure(slices.Max(r.values)), r.unit)
	}
	fmt.Fprintln(w)
}

// plot draws the drains of W1 as bars, one group per database.
func plot(w io.Writer, rs *results) {
	var bars []*result
	most := 1.0
	for _, r := range rs.list {
		if r.workload == "W1" {
			bars = append(bars, r)
			most = max(most, r.median())
		}
	}
	const row, left, width = 22, 330, 420
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		left+width+90, len(bars)*row+60)
	fmt.Fprintf(w, `<rect width="100%%" height="100%%" fill="white"/>`+
		`<text x="10" y="22" font-size="15">W1: events per second, three consumers (median, with spread)</text>`+"\n")
	for i, r := range bars {
		y := 40 + i*row
		length := r.median() / most * width
		colour := "#9aa5b1"
		if strings.HasPrefix(r.name, "bluecone") {
			colour = "#1f6feb"
		}
		fmt.Fprintf(w, `<text x="10" y="%d">%s: %s</text><rect x="%d" y="%d" width="%.1f" height="14" fill="%s"/>`, y+12, r.dialect, r.name,
			left, y, length, colour)
		from, to := slices.Min(r.values)/most*width, slices.Max(r.values)/most*width
		fmt.Fprintf(w, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="black"/><text x="%.1f" y="%d">%s</text>`+"\n", left+from, y+7,
			left+to, y+7, left+max(length, to)+6, y+12, figure(r.median()))
	}
	fmt.Fprintln(w, "</svg>")
}
