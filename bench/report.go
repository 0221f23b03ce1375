package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// progress says on standard error what has just been measured.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// printRates prints medians with their spread, and bluecone's ratio to each other contender of
// the same kind (the word after the comma of its name).
func printRates(title string, names []string, rates map[string][]float64) {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\n%s\tmedian\tmin\tmax\tbluecone, ordinary\tbluecone, batch\t\n", title)
	find := func(prefix string) float64 {
		i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix) })
		if i < 0 {
			return 0
		}
		return median(rates[names[i]])
	}
	ordinary, batch := find("bluecone, ordinary"), find("bluecone, batch")
	for _, n := range names {
		m := median(rates[n])
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.2f ×\t%.2f ×\t\n", n, m, slices.Min(rates[n]), slices.Max(rates[n]), ordinary/m, batch/m)
	}
	_ = t.Flush()
}
