package outbox

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

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

// outgrown lists tables with their pages, now and when PostgreSQL last looked.
const outgrown = "SELECT c.relname, pg_relation_size(c.oid) / current_setting('block_size')::int, c.relpages FROM pg_class c WHERE c.oid IN ('" + table + "'::regclass, 'bc_event_consume_log'::regclass)"

// renew asks for statistics of tables that have outgrown them. Who may not have them, or finds the
// tables locked, is not told so, and is asked again when they have doubled once more.
func (st *statistics) renew(ctx context.Context, o *Outbox) error {
	rows, err := o.db.QueryContext(ctx, outgrown)
	if err != nil {
		return err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		var pages, known int64
		if err := rows.Scan(&name, &pages, &known); err != nil {
			return err
		}
		if pages > 2*max(known, st.tried[name]) {
			names = append(names, name)
			st.tried[name] = pages
		}
	}
	if err := rows.Err(); err != nil || len(names) == 0 {
		return err
	}
	slices.Sort(names)
	return o.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL default_statistics_target = "+roughly); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "ANALYZE (SKIP_LOCKED) "+strings.Join(names, ", "))
		return err
	})
}

// roughly is how well PostgreSQL gets to know a young table, until autovacuum looks: by 3,000 rows instead
// of 30,000, a tenth of the time. How many rows there are is what matters.
const roughly = "10"

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
			s.p.ob.logger.Log(ctx, s.outage.level(ctx, err), "statistics could not be renewed; plans may be slow until autovacuum has looked at the tables", telemetry.Err, err)
		}
		cancel()
	}
}
