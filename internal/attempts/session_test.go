package attempts_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// Promise 5: "A failing, slow or paused consumer never delays another", and promise 3: a handler changes its session, and
// the connection goes back to the pool.
func TestSessionThatAHandlerChangesHarmsNobodyElse(t *testing.T) {
	t.Parallel()
	changes := map[string][]string{
		"mysql": {
			"SET SESSION autocommit = 0", "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'", "SET SESSION time_zone = '+09:00'",
			"SET SESSION TRANSACTION READ ONLY", "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", "USE information_schema",
			"SET NAMES latin1", "/*M!100100 SET SESSION TRANSACTION READ ONLY */", "EXECUTE IMMEDIATE 'SET SESSION TRANSACTION READ ONLY'",
		},
		"pg": {
			"SET search_path = pg_catalog", "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
			"SET default_transaction_isolation = 'serializable'",
			"SET TimeZone = 'Asia/Tokyo'", "SET DateStyle = 'SQL, DMY'", "SET statement_timeout = 1",
			"DO $$ BEGIN EXECUTE 'SET default_transaction_read_only = on'; END $$",
			"DELETE FROM effect WHERE seq = 77; SET default_transaction_read_only = on",
		},
		"sqlite": {
			"PRAGMA query_only = 1", "PRAGMA foreign_keys = 0", "PRAGMA busy_timeout = 0", "ATTACH DATABASE ':memory:' AS extra",
			"DELETE FROM effect WHERE seq = 77; PRAGMA query_only = 1",
		},
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		for i, change := range changes[dialect(db)] {
			w := newWorld(t, db)
			db.SetMaxOpenConns(3)
			db.SetMaxIdleConns(3)
			bus.On(w.bus.Consumer("Changes", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
				if err := write(ctx, tx, m, 1); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, change)
				return err
			})
			w.counting("Other", bus.ConsumerConfig{})
			for round := range 4 {
				w.save(paid{ID: id(100*i + round), Seq: i}, paid{ID: id(100*i + 50 + round), Seq: i})
				w.once()
			}
			w.eventually(func() bool {
				w.once()
				return w.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Other'") == 8
			}, change)
			require.Equal(t, w.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS'"), w.effects(), change)
			for _, table := range []string{"effect", "bc_event_consume_log", "bc_outbox_event"} {
				w.exec("DELETE FROM " + table)
			}
		}
	})
}
