package invariant_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

type paid struct {
	Order string `json:"order"`
	Seq   int    `json:"seq"`
}

func (paid) EventType() string              { return "order.paid" }
func (p paid) Aggregate() (kind, id string) { return "ORDER", p.Order }

// worked is a database after a day's work: six events of two orders, two consumers, one of which
// refuses one of them for good.
func worked(t *testing.T, db *bun.DB) (ids []string) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	b := bus.New(db, bus.Config{Logger: quiet})
	kind := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "pg": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[db.Dialect().Name().String()]
	testdb.Exec(t, db, "CREATE TABLE effect (id "+kind+", consumer VARCHAR(128) NOT NULL, event_id VARCHAR(64) NOT NULL, "+
		"aggregate VARCHAR(128) "+
		"NOT NULL, seq INT NOT NULL)")
	for _, name := range []string{"Wallet", "Points"} {
		bus.On(b.Consumer(name, bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			if name == "Points" && m.Payload.Seq == 6 {
				return bus.Permanent(errors.New("never"))
			}
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
				m.AggregateID, m.Payload.Seq)
			return err
		})
	}
	p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	_, err = p.RunOnce(t.Context()) // registers the consumers
	require.NoError(t, err)
	d, err := dialect.Of(db)
	require.NoError(t, err)
	require.Eventually(t, func() bool { // SQLite's clock counts milliseconds, and an event of the same one may have been before
		var registered int
		return db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM bc_consumer WHERE registered_at < "+d.Now).Scan(&registered) == nil &&
			registered == 2
	}, testdb.Patience(), time.Millisecond)
	for i := 1; i <= 6; i++ {
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return ob.Save(ctx, tx, paid{Order: []string{"a", "b"}[i%2], Seq: i})
		}))
	}
	_, err = p.RunOnce(t.Context())
	require.NoError(t, err)
	require.NoError(t, db.NewRaw("SELECT event_id FROM bc_outbox_event ORDER BY id").Scan(t.Context(), &ids))
	require.Len(t, ids, 6)
	return ids
}

// Every invariant holds after a day's work, and each is seen broken when it is.
func TestEveryInvariantCanFail(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, first *bun.DB) {
		name := first.Dialect().Name().String()
		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "pg": "now() - interval '1 hour'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hours') || '000')",
		}[name]
		for _, c := range []struct {
			breaks  string // what is reported for event 1, or 3
			event   int
			spoil   string
			args    int // how often the event's id stands in spoil
			history func(h *invariant.History, id string)
		}{
			{
				breaks: "I4 completeness", args: 1,
				spoil: "UPDATE bc_event_consume_log SET status = 'PENDING' WHERE consumer_name = 'Wallet' AND event_id = ?",
			},
			{breaks: "I4 completeness", spoil: "UPDATE bc_outbox_event SET status = 'NEW' WHERE event_id = ?", args: 1},
			{breaks: "I4 completeness", spoil: "DELETE FROM bc_event_consume_log WHERE consumer_name = 'Wallet' AND event_id = ?", args: 1},
			{
				breaks: "I5 no effect twice", args: 1,
				spoil: "INSERT INTO effect (consumer, event_id, aggregate, seq) SELECT consumer, event_id, aggregate, seq FROM effect " +
					"WHERE consumer = 'Wallet' AND event_id = ?",
			},
			{breaks: "I6 an effect if and only if SUCCESS", spoil: "DELETE FROM effect WHERE consumer = 'Wallet' AND event_id = ?", args: 1},
			{
				breaks: "I6 an effect if and only if SUCCESS", args: 1,
				spoil: "UPDATE bc_event_consume_log SET status = 'SKIPPED' WHERE consumer_name = 'Wallet' AND event_id = ?",
			},
			{breaks: "I7 order", event: 2, spoil: "UPDATE effect SET seq = 0 WHERE consumer = 'Wallet' AND event_id = ?", args: 1},
			{
				breaks: "I7 order", event: 2,
				spoil: "UPDATE bc_event_consume_log SET status = 'FAILED' WHERE consumer_name = 'Wallet' AND outbox_id = (SELECT MIN(id) " +
					"FROM bc_outbox_event)",
			},
			{
				breaks: "I8 no stuck lease", args: 1,
				spoil: "UPDATE bc_outbox_event SET status = 'DISPATCHING', next_retry_at = " + past + " WHERE event_id = ?",
			},
			{
				breaks: "I8 no stuck lease", args: 1,
				spoil: "UPDATE bc_event_consume_log SET status = 'PROCESSING', next_retry_at = " + past +
					" WHERE consumer_name = 'Wallet' AND event_id = ?",
			},
			{breaks: "I10 attempts are truthful", event: 5, spoil: "UPDATE bc_event_consume_log SET attempts = 0 WHERE event_id = ?", args: 1},
			{
				breaks: "I10 attempts are truthful", args: 1,
				spoil: "UPDATE bc_event_consume_log SET attempts = 2 WHERE consumer_name = 'Wallet' AND event_id = ?",
			},
			{
				breaks: "I10 attempts are truthful", event: 5, args: 1,
				spoil: "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us) " +
					"VALUES ('Points', ?, 2, 'FAILED', 'i', 0)",
			},
			{breaks: "I10 attempts are truthful", event: 5, spoil: "DELETE FROM bc_delivery_attempt WHERE event_id = ?", args: 1},
			{
				breaks: "I10 attempts are truthful", event: 5, args: 1,
				spoil: "UPDATE bc_event_consume_log SET status = 'SUCCESS' WHERE consumer_name = 'Points' AND event_id = ?",
			},
			{
				breaks: "I10 attempts are truthful", args: 1,
				spoil: "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us) " +
					"VALUES ('Nobody', ?, 1, 'FAILED', 'i', 0)",
			},
			{breaks: "I11 known states", spoil: "UPDATE bc_outbox_event SET status = 'sent' WHERE event_id = ?", args: 1},
			{
				breaks: "I11 known states", args: 1,
				spoil: "UPDATE bc_event_consume_log SET status = 'DONE' WHERE consumer_name = 'Wallet' AND event_id = ?",
			},
			{breaks: "I20 retention takes only what is done", event: 5, spoil: "DELETE FROM bc_outbox_event WHERE event_id = ?", args: 1},
			{breaks: "I1 no committed event lost", history: func(h *invariant.History, _ string) { h.Committed = append(h.Committed, "lost") }},
			{breaks: "I2 no ghost", history: func(h *invariant.History, id string) { h.Failed = []string{id} }},
			{breaks: "I3 unknown is consistent", history: func(h *invariant.History, id string) { h.Unknown = map[string]bool{id: false} }},
			{breaks: "I3 unknown is consistent", history: func(h *invariant.History, _ string) { h.Unknown = map[string]bool{"lost": true} }},
		} {
			db := testdb.Open(t, testdb.Server(t, first))
			ids := worked(t, db)
			cfg := invariant.Config{
				Quiet: true, Effects: invariant.Effects{Table: "effect"},
				History: invariant.History{Committed: ids, Failed: []string{"never"}, Unknown: map[string]bool{"gone": false, ids[0]: true}},
			}
			found, err := invariant.Check(t.Context(), db, cfg)
			require.NoError(t, err)
			require.Empty(t, found)

			id := ids[c.event]
			if c.history != nil {
				c.history(&cfg.History, id)
			} else {
				testdb.Exec(t, db, c.spoil, []any{id}[:c.args]...)
			}
			found, err = invariant.Check(t.Context(), db, cfg)
			require.NoError(t, err)
			seen := false
			for _, v := range found {
				seen = seen || (v.Invariant == c.breaks && (v.EventID == id || v.EventID == "lost"))
			}
			require.True(t, seen, "%s after %s: %v", c.breaks, c.spoil, found)
			_ = db.Close() // many of them
		}
	})
}

// An event of one tenant that waits is not before those of another tenant's aggregate with the same id.
func TestTenantsShareNoOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		worked(t, db)
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET tenant_id = 2 WHERE outbox_id > (SELECT MIN(id) FROM bc_outbox_event)")
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET status = 'FAILED' WHERE consumer_name = 'Wallet' AND outbox_id = (SELECT MIN(id) "+
			"FROM bc_outbox_event)")
		found, err := invariant.Check(t.Context(), db, invariant.Config{Quiet: true})
		require.NoError(t, err)
		for _, v := range found {
			require.NotEqual(t, "I7 order", v.Invariant, "%v", v)
		}
	})
}

// Attempts are counted anew after an operator's retry, runs that do not count are told from those
// that do, and one that ended without an answer is explained.
func TestAttemptsAddUp(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		quiet := slog.New(slog.DiscardHandler)
		ob, err := outbox.New(db, outbox.Config{Logger: quiet})
		require.NoError(t, err)
		b := bus.New(db, bus.Config{Logger: quiet})
		answers := []error{
			bus.RetryAfter(errors.New("later"), time.Minute), errors.New("no"), errors.New("no"),
			bus.Permanent(errors.New("never")), errors.New("no"),
		}
		bus.On(b.Consumer("Wallet", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[paid]) (err error) {
			if len(answers) > 0 {
				err, answers = answers[0], answers[1:]
			}
			return err
		})
		p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, paid{Order: "a"}) }))
		var id string
		require.NoError(t, db.NewRaw("SELECT event_id FROM bc_outbox_event").Scan(t.Context(), &id))
		attempts := func(status string, want int) {
			t.Helper()
			_, err := p.RunOnce(t.Context())
			require.NoError(t, err)
			var n int
			require.NoError(t, db.NewRaw("SELECT attempts FROM bc_event_consume_log WHERE status = ?", status).Scan(t.Context(), &n))
			require.Equal(t, want, n)
			found, err := invariant.Check(t.Context(), db, invariant.Config{})
			require.NoError(t, err)
			require.Empty(t, found)
			testdb.Exec(t, db, "UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE next_retry_at IS NOT NULL")
		}
		attempts("FAILED", 0) // put off
		attempts("FAILED", 1)
		attempts("FAILED", 2)
		// A process dies of a delivery that it ran alone.
		testdb.Exec(t, db, "UPDATE bc_event_consume_log SET status = 'PROCESSING', attempts = attempts + 1, started = 2, locked_by = 'dead', "+
			"lock_version = lock_version + 1")
		attempts("DEAD", 4)
		require.NoError(t, ob.Retry(t.Context(), outbox.Operation{Actor: "me", Reason: "it is well now"}, id))
		attempts("FAILED", 1)
		attempts("SUCCESS", 2)
		found, err := invariant.Check(t.Context(), db, invariant.Config{Quiet: true, Pauses: true})
		require.NoError(t, err)
		require.NotEmpty(t, found) // this test did not wait
		for _, v := range found {
			require.Equal(t, invariant.Violation{
				Invariant: "I10 attempts are truthful", EventID: id, Consumer: "Wallet", Says: "tried again too early",
			}, v)
		}
		var outcomes []string
		require.NoError(t, db.NewRaw("SELECT outcome FROM bc_delivery_attempt ORDER BY id").Scan(t.Context(), &outcomes))
		require.Equal(t, []string{"PENDING", "FAILED", "FAILED", "PROCESSING", "DEAD", "FAILED"}, outcomes)
	})
}

// Work that is under way breaks nothing.
func TestWorkUnderWayIsNoViolation(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ids := worked(t, db)
		testdb.Exec(t, db, "UPDATE bc_outbox_event SET status = 'NEW' WHERE event_id = ?", ids[0])
		found, err := invariant.Check(t.Context(), db, invariant.Config{})
		require.NoError(t, err)
		require.Empty(t, found)
		found, err = invariant.Check(t.Context(), db, invariant.Config{Quiet: true})
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, invariant.Print(&out, found))
		require.Equal(t, "I4 completeness: event "+ids[0]+": NEW\n1 violations\n", out.String())
	})
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	_, err := invariant.Check(t.Context(), nil, invariant.Config{})
	require.ErrorContains(t, err, "db is nil")
	_, err = invariant.Check(t.Context(), db, invariant.Config{Stuck: -time.Second})
	require.ErrorContains(t, err, "Stuck is -1s")
	_, err = invariant.Check(t.Context(), db, invariant.Config{Effects: invariant.Effects{Table: "effect; DROP TABLE x"}})
	require.ErrorContains(t, err, "a plain name is needed")
	_, err = invariant.Check(t.Context(), db, invariant.Config{Effects: invariant.Effects{Table: "nowhere"}})
	require.ErrorContains(t, err, "nowhere")
}
