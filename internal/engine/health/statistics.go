package health

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// statisticsEvery is how often to look whether the tables have outgrown what PostgreSQL knows of them.
const statisticsEvery = time.Second

// Statistics makes PostgreSQL look at tables that have more than doubled since it last did. What it does
// by itself, once a minute at most, is too late for young ones: a prepared statement keeps the plan that
// it was given when they were empty, and reads all of them. In old tables that never happens.
type Statistics struct {
	DB     *bun.DB
	Logger *slog.Logger
	Outage *Outage
	Limit  time.Duration // how long one look may take
}

// Run looks, until stop is closed, whenever events have been claimed since the last time.
func (st Statistics) Run(stop <-chan struct{}, claimed *atomic.Int64) {
	tick := time.NewTicker(statisticsEvery)
	defer tick.Stop()
	tried := make(map[string]int64)
	for before := int64(0); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := claimed.Load()
		if now == before {
			continue
		}
		before = now
		ctx, cancel := context.WithTimeout(context.Background(), st.Limit)
		if err := st.renew(ctx, tried); err != nil {
			st.Logger.Log(ctx, st.Outage.Level(ctx, err), "statistics could not be renewed; plans may be slow until autovacuum has looked at "+
				"the tables", telemetry.Err, err)
		}
		cancel()
	}
}

// renew asks for statistics of tables that have outgrown them; tried are the pages that a table had when it last did. PostgreSQL
// answers no error if the user may not analyze a table, or if it is locked: it is asked again when the table has doubled once more.
func (st Statistics) renew(ctx context.Context, tried map[string]int64) error {
	tables, err := store.Growth(ctx, st.DB)
	if err != nil {
		return err
	}
	var names []string
	for _, t := range tables {
		if t.Pages > 2*max(t.Known, tried[t.Table]) {
			names = append(names, t.Table)
			tried[t.Table] = t.Pages
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return store.Analyze(ctx, st.DB, names)
}
