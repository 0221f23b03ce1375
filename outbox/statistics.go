package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// statisticsEvery is how often to look whether the tables have outgrown what PostgreSQL knows of them.
const statisticsEvery = time.Second

// statistics makes PostgreSQL look at tables that have more than doubled since it last did. What it does
// by itself, once a minute at most, is too late for young ones: a prepared statement keeps the plan that
// it was given when they were empty, and reads all of them. In old tables that never happens.
type statistics struct {
	tried map[string]int64 // pages that a table had when we last asked for it
}

// renew asks for statistics of tables that have outgrown them. Who may not have them, or finds the
// tables locked, is not told so, and is asked again when they have doubled once more.
func (st *statistics) renew(ctx context.Context, o *Outbox) error {
	tables, err := store.Growth(ctx, o.db)
	if err != nil {
		return err
	}
	var names []string
	for _, t := range tables {
		if t.Pages > 2*max(t.Known, st.tried[t.Table]) {
			names = append(names, t.Table)
			st.tried[t.Table] = t.Pages
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return store.Analyze(ctx, o.db, names)
}

// statisticsLoop keeps PostgreSQL's statistics up with the tables, while there is something to do.
func (s *session) statisticsLoop() {
	tick := time.NewTicker(statisticsEvery)
	defer tick.Stop()
	st := statistics{tried: make(map[string]int64)}
	for before := int64(0); ; {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		claimed := s.claimed.Load()
		if claimed == before {
			continue
		}
		before = claimed
		ctx, cancel := context.WithTimeout(context.Background(), s.p.cfg.Lease)
		if err := st.renew(ctx, s.p.ob); err != nil {
			s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "statistics could not be renewed; plans may be slow until autovacuum has looked at "+
				"the tables", telemetry.Err, err)
		}
		cancel()
	}
}
