package main

import (
	"fmt"
	"strings"
)

// goal is one row of the table of what has to be reached.
type goal struct {
	text, dialect string
	value         func(rs *results) float64 // 0: not measured in this run
	bound         float64                   // 0: it only explains another one
	atMost        bool
}

// verdict is what to say of a ratio.
func (g goal) verdict(v float64, missed string) string {
	switch {
	case g.bound == 0:
		return ""
	case g.reached(v):
		return "reached"
	}
	return missed
}

// figure writes v, with another place where rounding would make a miss look like its goal.
func (g goal) figure(v float64) string {
	if s := figure(v); g.reached(v) || s != figure(g.bound) {
		return s
	}
	return fmt.Sprintf("%.3f", v)
}

func (g goal) reached(v float64) bool {
	return (g.atMost && v <= g.bound) || (!g.atMost && v >= g.bound)
}

func (g goal) wanted() string {
	if g.bound == 0 {
		return ""
	}
	return map[bool]string{true: "≤ ", false: "≥ "}[g.atMost] + figure(g.bound)
}

// ratio of two medians of one workload and database; 0 if one is missing.
func ratio(workload, dialect, name, to string) func(*results) float64 {
	return func(rs *results) float64 {
		a, b := rs.find(workload, dialect, name).median(), rs.find(workload, dialect, to).median()
		if b == 0 {
			return 0
		}
		return a / b
	}
}

// goals are those of the table, and the ratios that explain them.
func goals() []goal {
	var c collector
	c.drains()
	c.latencies()
	c.produces()
	c.histories()
	c.crowds()
	return append(c, reasons()...)
}

// collector collects goals.
type collector []goal

func (c *collector) atLeast(text, workload, dialect, name, to string, bound float64) {
	*c = append(*c, goal{text, dialect, ratio(workload, dialect, name, to), bound, false})
}

func (c *collector) atMost(text, workload, dialect, name, to string, bound float64) {
	*c = append(*c, goal{text, dialect, ratio(workload, dialect, name, to), bound, true})
}

// drains are the goals of W1.
func (c *collector) drains() {
	for _, d := range servers {
		c.atLeast("W1 ordinary handlers by OnSQL, to the limit", "W1", d, engineOrdinary, limitOrdinary, 0.70)
	}
	c.atLeast("W1 ordinary handlers by OnSQL, to the limit", "W1", "sqlite", engineOrdinary, limitOrdinary, 0.75)
	c.atLeast("W1 ordinary handlers by OnSQL, to watermill-sql", "W1", "mysql", engineOrdinary, watermillTuned, 1.5)
	c.atLeast("W1 ordinary handlers by On, to the limit", "W1", "mysql", engineOrdinaryOn, limitOrdinary, 0.70)
	c.atLeast("W1 ordinary handlers by On, to watermill-sql", "W1", "mysql", engineOrdinaryOn, watermillTuned, 1.5)
	c.atLeast("W1 batch handlers by OnSQLBatch, to the limit", "W1", "mysql", engineBatch, limitBatch, 0.60)
	c.atLeast("W1 batch handlers by OnSQLBatch, to watermill-sql", "W1", "mysql", engineBatch, watermillTuned, 3.8)
	c.atLeast("W1 ordinary handlers by OnSQL, to watermill-sql", "W1", "postgres", engineOrdinary, watermillTuned, 1.1)
	c.atLeast("W1 ordinary handlers by On, to watermill-sql", "W1", "postgres", engineOrdinaryOn, watermillTuned, 0.85)
	c.atLeast("W1 batch handlers by OnSQLBatch, to the limit", "W1", "postgres", engineBatch, limitBatch, 0.55)
	c.atLeast("W1 ordinary handlers by OnSQL, to River exactly once", "W1", "postgres", engineOrdinary, riverExactlyOnce, 15)
	c.atLeast("W1 ordinary handlers by OnSQL, to River at least once", "W1", "postgres", engineOrdinary, riverAtLeastOnce, 4)
	for _, d := range all {
		*c = append(*c, goal{"W1 memory above idle, MiB", d, func(rs *results) float64 {
			return rs.find(beside, d, engineOrdinary+", memory above idle").median()
		}, 64, true})
	}
}

// latencies are the goals of W2.
func (c *collector) latencies() {
	for _, d := range servers {
		c.atMost("W2 200/s, defaults, p50 to the limit's", "W2", d, engineDefault+", 200/s, p50", limitWake+", 200/s, p50", 1.3)
		c.atMost("W2 200/s, defaults, p99 to the limit's", "W2", d, engineDefault+", 200/s, p99", limitWake+", 200/s, p99", 2)
	}
}

// produces are the goals of W3.
func (c *collector) produces() {
	for _, d := range all {
		for _, writers := range []int{1, 4, 16} {
			c.atLeast(fmt.Sprintf("W3 %d writers, to the insert by hand", writers), "W3", d,
				fmt.Sprintf("%s, %d writers", produceEngine, writers), fmt.Sprintf("%s, %d writers", produceHand, writers), producing(d, writers))
		}
	}
}

// producing is the goal of so many writers. On PostgreSQL with 16 it is what the row's columns and indexes leave.
func producing(dialect string, writers int) float64 {
	if dialect == "postgres" && writers == 16 {
		return 0.70
	}
	return 0.90
}

// histories are the goals of W4.
func (c *collector) histories() {
	for _, d := range all {
		*c = append(*c, goal{"W4 most history, drain, to the least", d, mostToLeastHistory(d, "drain"), 0.9, false})
		*c = append(*c, goal{"W4 most history, p50 at 200/s, to the least", d, mostToLeastHistory(d, "200/s, p50"), 1.1, true})
	}
	for _, d := range servers {
		c.atLeast("W4 old snapshot held, drain, to none held", "W4", d, "old snapshot held, drain", "no snapshot held, drain", 0.5)
		c.atMost("W4 old snapshot held, p50 at 200/s, to none held", "W4", d, "old snapshot held, 200/s, p50", "no snapshot held, 200/s, p50", 2)
	}
}

// crowds are the goals of W5 and W6.
func (c *collector) crowds() {
	for _, d := range servers {
		for _, count := range crowdSizes[1:] {
			c.atLeast(fmt.Sprintf("W5 %d instances, to one", count), "W5", d, fmt.Sprintf("%d instances", count), "1 instances", 0.9)
		}
	}
	for _, d := range all {
		for _, trouble := range troubles[1:] {
			c.atLeast("W6 "+trouble+", drain of the others, to undisturbed", "W6", d, trouble+", drain of the others",
				troubles[0]+", drain of the others", 0.9)
			c.atMost("W6 "+trouble+", p99 of the others, to undisturbed", "W6", d, trouble+", the others at 200/s, p99",
				troubles[0]+", the others at 200/s, p99", 1.5)
		}
	}
}

// reasons tell how much of a distance to the slim tables is that of the tables, and how much the code's.
func reasons() (gs []goal) {
	explain := func(text, workload, dialect, name, to string) {
		gs = append(gs, goal{text: text, dialect: dialect, value: ratio(workload, dialect, name, to)})
	}
	for _, d := range servers {
		for _, count := range crowdSizes[1:] {
			explain(fmt.Sprintf("W5 %d instances by hand on bluecone's tables, to one", count), "W5", d, crowd{count, true}.name(),
				crowd{1, true}.name())
		}
	}
	explain("W1 ordinary handlers by On, to watermill-sql with text", "W1", "postgres", engineOrdinaryOn, watermillText)
	for _, d := range all {
		explain("W1 ordinary handlers: by hand on bluecone's tables, to the limit on slim ones", "W1", d, fullOrdinary, limitOrdinary)
		explain("W1 ordinary handlers: by OnSQL, to by hand on bluecone's tables", "W1", d, engineOrdinary, fullOrdinary)
		explain("W1 ordinary handlers: by On with bun, to by OnSQL", "W1", d, engineOrdinaryOn, engineOrdinary)
		explain("W1 batch handlers: by hand on bluecone's tables, to the limit on slim ones", "W1", d, fullBatch, limitBatch)
		explain("W1 batch handlers: by OnSQLBatch, to by hand on bluecone's tables", "W1", d, engineBatch, fullBatch)
		explain("W1 batch handlers: by OnBatch with bun, to by OnSQLBatch", "W1", d, engineBatchOn, engineBatch)
		for _, writers := range []int{1, 4, 16} {
			explain(fmt.Sprintf("W3 %d writers: by hand into bluecone's table, to a slim one", writers), "W3", d,
				fmt.Sprintf("%s, %d writers", produceFull, writers), fmt.Sprintf("%s, %d writers", produceHand, writers))
			explain(fmt.Sprintf("W3 %d writers: bluecone, to by hand into its table", writers), "W3", d,
				fmt.Sprintf("%s, %d writers", produceEngine, writers), fmt.Sprintf("%s, %d writers", produceFull, writers))
		}
	}
	return gs
}

// mostToLeastHistory compares a figure with the most and with the fewest SENT rows.
func mostToLeastHistory(dialect, what string) func(*results) float64 {
	return func(rs *results) float64 {
		var first, last float64
		for _, r := range rs.list {
			if r.workload != "W4" || r.dialect != dialect || !strings.HasSuffix(r.name, " SENT rows, "+what) {
				continue
			}
			if first == 0 {
				first = r.median()
			}
			last = r.median()
		}
		if first == 0 {
			return 0
		}
		return last / first
	}
}
