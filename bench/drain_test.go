package main

import (
	"context"
	"net/url"
	"slices"
	"testing"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Every contender of W1 drains a small backlog, each event once for each consumer, and in order where it promises that.
func TestContendersDrain(t *testing.T) {
	for _, dialect := range []string{"mysql", "postgres", "sqlite"} {
		m := &machine{dialect: dialect, dir: t.TempDir()}
		t.Run(dialect, func(t *testing.T) {
			if dsn := testdb.DSN(t, dialect); dialect != "sqlite" {
				u, err := url.Parse(dsn)
				check(t, err)
				m.server = &server{url: u}
			}
			for _, c := range drainers() {
				if slices.Contains(c.dialects, dialect) {
					t.Run(c.name, func(t *testing.T) { drainsSmallBacklog(t, m, c) })
				}
			}
		})
	}
}

func drainsSmallBacklog(t *testing.T, m *machine, c drainer) {
	t.Parallel()
	const events = 10 * perAggregate
	ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
	defer cancel()
	db, err := m.fresh(ctx)
	check(t, err)
	defer db.close()
	check(t, db.effects(ctx))
	drain, err := c.prepare(ctx, db, events)
	check(t, err)
	check(t, drain(ctx))
	if c.consumers > 0 {
		check(t, db.check(ctx, events*c.consumers, c.ordered))
	}
}

// A goal is about contenders that there are: a name that nobody has would leave its row out.
func TestGoalsAreAboutContenders(t *testing.T) {
	t.Parallel()
	var rs results
	for _, c := range drainers() {
		for _, d := range c.dialects {
			rs.list = append(rs.list, &result{"W1", d, c.name, "events/s", []float64{1}},
				&result{beside, d, c.name + ", memory above idle", "MiB", []float64{1}})
		}
	}
	var seen int
	for _, g := range goals() {
		if g.text[:2] != "W1" {
			continue
		}
		if seen++; g.value(&rs) == 0 {
			t.Errorf("%s on %s: one of its contenders does not run there", g.text, g.dialect)
		}
	}
	if seen == 0 {
		t.Error("W1 has no goals")
	}
}
