package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// beside are figures of W1 that are not its rates.
const beside = "W1m"

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

// keep takes over, from a table that [markdown] has written, the figures of workloads and databases
// that were not measured now. A ratio is always of figures that were measured together.
func (rs *results) keep(table string) {
	measured := make(map[[2]string]bool)
	for _, r := range rs.list {
		measured[[2]string{r.table(), r.dialect}] = true
	}
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if r := parseResult(cells); r != nil && !measured[[2]string{r.table(), r.dialect}] {
			rs.list = append(rs.list, r)
		}
	}
	slices.SortStableFunc(rs.list, func(a, b *result) int {
		return cmp.Or(cmp.Compare(slices.Index(all, a.dialect), slices.Index(all, b.dialect)), cmp.Compare(a.table(), b.table()))
	})
}

// table is the workload as the table has it.
func (r *result) table() string { return strings.TrimSuffix(r.workload, "m") }

// parseResult reads a row of the table of figures; nil if it is none.
func parseResult(cells []string) *result {
	if len(cells) != 6 {
		return nil
	}
	least, most, ok := strings.Cut(cells[4], " – ")
	r := &result{workload: cells[0], dialect: cells[1], name: cells[2], unit: cells[5]}
	for _, text := range []string{least, cells[3], most} {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !ok {
			return nil
		}
		r.values = append(r.values, v)
	}
	if r.workload == "W1" && r.unit != "events/s" {
		r.workload = beside
	}
	return r
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
