package main

import (
	"strings"
	"testing"
)

// What a table says of a workload that is not measured again stays as it is.
func TestKeepTakesOverWhatWasNotMeasured(t *testing.T) {
	t.Parallel()
	old := &results{list: []*result{
		{"W1", "mysql", "a", "events/s", []float64{3, 1, 2}},
		{beside, "mysql", "a, memory", "MiB", []float64{7, 7, 9}},
		{"W1", "sqlite", "a", "events/s", []float64{1234, 1300, 1500}},
	}}
	var table strings.Builder
	markdown(&table, old)
	now := &results{list: []*result{{"W1", "sqlite", "b", "events/s", []float64{5, 6, 7}}}}
	now.keep(table.String())
	var got []string
	for _, r := range now.list {
		got = append(got, r.workload+" "+r.dialect+" "+r.name+" "+figure(r.median()))
	}
	want := "W1 mysql a 2.00; W1m mysql a, memory 7.00; W1 sqlite b 6.00"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("kept %s, want %s", s, want)
	}
}
