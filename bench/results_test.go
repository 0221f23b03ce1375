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

func TestMissIsNotRoundedToItsGoal(t *testing.T) {
	for _, c := range []struct {
		g    goal
		v    float64
		want string
	}{
		{goal{bound: 0.75}, 0.748, "0.748"},
		{goal{bound: 0.75}, 0.752, "0.75"},
		{goal{bound: 0.75}, 0.71, "0.71"},
		{goal{bound: 2, atMost: true}, 2.004, "2.004"},
	} {
		if got := c.g.figure(c.v); got != c.want {
			t.Errorf("%v for a goal of %v: %s, want %s", c.v, c.g.bound, got, c.want)
		}
	}
}
