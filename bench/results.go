package main

import (
	"fmt"
	"os"
	"slices"
)

// result is one figure, measured once per run.
type result struct {
	workload, dialect, name, unit string
	values                        []float64
}

func (r *result) median() float64 {
	if r == nil || len(r.values) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(r.values))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// results collects figures in the order in which they were first measured.
type results struct{ list []*result }

func (rs *results) find(workload, dialect, name string) *result {
	for _, r := range rs.list {
		if r.workload == workload && r.dialect == dialect && r.name == name {
			return r
		}
	}
	return nil
}

// add notes a figure, and says so.
func (rs *results) add(workload, dialect, name, unit string, v float64) {
	r := rs.find(workload, dialect, name)
	if r == nil {
		r = &result{workload: workload, dialect: dialect, name: name, unit: unit}
		rs.list = append(rs.list, r)
	}
	r.values = append(r.values, v)
	progress("%-8s %-3s %-46s %10s %s", dialect, workload, name, figure(v), unit)
}

// figure writes a number with as many digits as mean something.
func figure(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// progress says on standard error what has just been measured.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
