package attempts_test

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// Promise 1: "An event exists if and only if its transaction committed", in transactions of every isolation level.
func TestEventsOfEveryIsolationLevelExist(t *testing.T) {
	t.Parallel()
	levels := []sql.IsolationLevel{sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		for i, level := range levels {
			for _, commit := range []bool{true, false} {
				tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
				require.NoError(t, err)
				require.NoError(t, w.ob.Save(t.Context(), tx, paid{ID: fmt.Sprint(level, commit), Seq: i}, keyed{
					ID: "k", Key: fmt.Sprint(level, commit),
				}))
				if commit {
					require.NoError(t, tx.Commit())
				} else {
					require.NoError(t, tx.Rollback())
				}
			}
		}
		w.once()
		require.Equal(t, len(levels), w.effects())
		require.Equal(t, 2*len(levels), w.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// Doc of Save: "Saving a keyed event that exists already is a no-op", in a transaction whose snapshot is older than the event.
func TestKeyedEventYoungerThanTheSnapshotIsSavedOnce(t *testing.T) {
	t.Parallel()
	levels := []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable}
	on(t, servers, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		for _, level := range levels {
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
			require.NoError(t, err)
			var n int
			require.NoError(t, tx.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM effect").Scan(&n)) // here its snapshot begins
			e := keyed{ID: "1", Key: "fact of " + level.String()}
			w.save(e)
			if err := w.ob.Save(t.Context(), tx, e); err != nil {
				require.ErrorContains(t, err, "could not serialize", "PostgreSQL ends it, and says that it is to be run again")
				require.NoError(t, tx.Rollback())
				require.NoError(t, w.trySave(e))
			} else {
				require.NoError(t, w.ob.Save(t.Context(), tx, paid{ID: level.String()}), "the transaction goes on")
				require.NoError(t, tx.Commit())
				require.Equal(t, 1, w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = ?", level.String()))
			}
		}
		require.Equal(t, len(levels), w.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_type = 'order.keyed'"))
	})
}

// Promise 1: "Rolled back to a savepoint, the event is gone with it", keyed and not, and then saved again.
func TestEventSavedAgainAfterItsSavepointWasRolledBackExists(t *testing.T) {
	t.Parallel()
	undo := errors.New("undo")
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		w.counting("A", bus.ConsumerConfig{})
		again := keyed{ID: "1", Key: "once"}
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			require.NoError(t, w.ob.Save(ctx, tx, paid{ID: "first", Seq: 1}))
			for range 2 {
				require.ErrorIs(t, tx.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
					require.NoError(t, w.ob.Save(ctx, tx, again, paid{ID: "gone"}))
					require.ErrorIs(t, tx.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
						require.NoError(t, w.ob.Save(ctx, tx, again, paid{ID: "gone deeper"}))
						return undo
					}), undo)
					return undo
				}), undo)
			}
			require.NoError(t, w.ob.Save(ctx, tx, again))
			require.NoError(t, w.ob.Save(ctx, tx, again))
			return w.ob.Save(ctx, tx, paid{ID: "first", Seq: 2})
		}))
		w.once()
		require.Equal(t, []string{"1", "2"}, w.column("SELECT seq FROM effect ORDER BY id"))
		require.Equal(t, []string{"first", "1", "first"}, w.column("SELECT aggregate_id FROM bc_outbox_event ORDER BY id"))
	})
}

// Promise 4: "in commit order"; keyed events of one call "are taken in one order", which must not become theirs.
func TestKeyedEventsOfOneCallKeepTheirOrder(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[keyed]) error {
			return write(ctx, tx, m, m.Payload.Seq)
		})
		keys := []string{"z", "a", "m", "b", "y", "c"}
		events := make([]bus.Event, len(keys))
		for i, k := range keys {
			events[i] = keyed{ID: "1", Seq: i, Key: k}
		}
		w.save(append(events, events[0], keyed{ID: "2", Seq: 9, Key: "z"})...)
		w.once()
		require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, w.column("SELECT seq FROM effect ORDER BY id"))
	})
}

// Doc of bus.Keyed: "the same type, tenant and key always give the same event_id", and others never do.
func TestEventIDsOfDifferentFactsDiffer(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, tenant := range []int64{0, 1, 11} {
		for _, typ := range []string{"a", "a.b", "1.a", "1a"} {
			for _, key := range []string{"k", "k ", "K", "1:k", "a:k", "b:k", ".b:k", "é", "e\u0301", "\u200bk", "a\x00k"} {
				id := outbox.EventID(tenant, typ, key)
				fact := fmt.Sprintf("%d %q %q", tenant, typ, key)
				require.Empty(t, seen[id], fact)
				seen[id] = fact
				require.LessOrEqual(t, len(id), 64)
			}
		}
	}
}

// Promise 7: "Saving costs one INSERT": of five thousand events too, and each of them is delivered, in order.
func TestManyEventsInOneCall(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		const n = 5_000
		w := newWorld(t, db)
		got, last := 0, make(map[string]int)
		bus.OnBatch(w.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(_ context.Context, _ bun.Tx, ms []bus.Message[paid]) error {
			for _, m := range ms {
				if m.Payload.Seq < last[m.AggregateID] {
					return bus.Permanent(errors.New("out of order"))
				}
				last[m.AggregateID] = m.Payload.Seq
				got++
			}
			return nil
		})
		events := make([]bus.Event, n)
		for i := range events {
			events[i] = paid{ID: id(i % 7), Seq: i}
		}
		w.save(events...)
		w.once()
		require.Equal(t, n, got)
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: n}, w.statuses())
	})
}

// Promise 1: Save in a transaction that cannot write, or is over, says so.
func TestSaveInATransactionThatCannotWriteFails(t *testing.T) {
	t.Parallel()
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		if dialect(db) != "sqlite" { // whose driver ignores it
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
			require.NoError(t, err)
			require.Error(t, w.ob.Save(t.Context(), tx, paid{ID: "1"}))
			require.NoError(t, tx.Rollback())
		}
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, tx.Commit())
		require.Error(t, w.ob.Save(t.Context(), tx, paid{ID: "1"}))
		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, w.ob.Save(ended, tx, paid{ID: "1"}, keyed{ID: "1", Key: "k"}))
		require.NoError(t, errors.Join(tx.Rollback()))
		require.Zero(t, w.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.NoError(t, w.trySave(keyed{ID: "1", Key: "k"}))
		require.Equal(t, 1, w.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// raw has a payload that no struct of Go would make.
type raw struct {
	ID   string
	JSON string
}

func (raw) EventType() string               { return "order.raw" }
func (e raw) Aggregate() (kind, id string)  { return "ORDER", e.ID }
func (e raw) MarshalJSON() ([]byte, error)  { return []byte(cmp.Or(e.JSON, "null")), nil }
func (e *raw) UnmarshalJSON(b []byte) error { e.JSON = string(b); return nil }

// Promise 2: "Every registered consumer gets every event", and the payload is what was saved: doubled keys, huge numbers, NUL.
func TestOddJSONArrivesOrIsRefused(t *testing.T) {
	t.Parallel()
	payloads := []string{
		`{"a":1,"a":2}`, `{"n":123456789012345678901234567890.000000000000000000001}`, `{"n":1e308}`, `{"n":1e999999}`, `{"s":"a\u0000b"}`,
		`{"s":"\ud800"}`, `{"s":"\\u0000"}`, `[]`, `null`, `7`, `"text"`, `{"b":1,"a":2}`, `{"s":"` + strings.Repeat(`\u00e9`, 100) + `"}`,
		`{"n":-0}`, `{"":""}`,
		`{"s":"'; DROP TABLE bc_outbox_event; -- \\"}`, `{"s":"?0 ?1 ? %s"}`,
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		got := make(map[string]string)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(_ context.Context, _ bun.Tx, m bus.Message[raw]) error {
			got[m.AggregateID] = string(m.Data)
			return nil
		})
		want := make(map[string]string)
		for i, p := range payloads {
			if err := w.trySave(raw{ID: id(i), JSON: p}); err != nil {
				require.ErrorIs(t, err, outbox.ErrInvalidEvent, p)
				continue
			}
			want[id(i)] = p
		}
		w.settle()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: len(want)}, w.statuses())
		for i, p := range want {
			if strings.Contains(p, "1e999999") {
				require.Equal(t, p, strings.ReplaceAll(got[i], " ", ""))
				continue
			}
			require.JSONEq(t, p, got[i])
			if number := new(json.Number); strings.Contains(p, "123456789012345678901234567890") {
				var v map[string]json.Number
				require.NoError(t, json.Unmarshal([]byte(got[i]), &v), number)
				require.Equal(t, json.Number("123456789012345678901234567890.000000000000000000001"), v["n"])
			}
		}
	})
}

// slashed names its aggregate by both parts.
type slashed struct{ Kind, ID string }

func (slashed) EventType() string              { return "order.slashed" }
func (e slashed) Aggregate() (kind, id string) { return e.Kind, e.ID }

// Promise 4: "Other aggregates never wait for it": aggregates whose names are alike when they are put together, or but for case,
// accents, or what nobody sees.
func TestAggregatesThatAreAlikeDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	alike := [][]slashed{
		{{"A", "B/C"}, {"A/B", "C"}, {"A", "B:C"}, {"A:B", "C"}, {"A", "0/A/B"}},
		{{"A", "plain"}, {"A", "Plain"}, {"a", "plain"}, {"A", "pl\u200bain"}, {"A", "plain\u00ad"}, {"A", "plain\u200b"}},
		{{"A", "r\u00e9sum\u00e9"}, {"A", "re\u0301sume\u0301"}, {"A", "resume"}, {"A", "RESUME"}},
		{{"A", "1"}, {"A", "01"}, {"A", "1.0"}, {"A", "\uff11"}},
		{{strings.Repeat("A", 64), strings.Repeat("b", 127) + "1"}, {strings.Repeat("A", 64), strings.Repeat("b", 127) + "2"}},
	}
	on(t, all, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db)
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[slashed]) error {
			if m.Payload == alike[m.TenantID-1][0] {
				return errors.New("the first of each group fails")
			}
			return write(ctx, tx, m, 1)
		})
		saved := 0
		for round := range 2 {
			for group, events := range alike {
				for _, e := range events {
					if err := w.trySave(outbox.With(e, outbox.Tenant(int64(group+1), 0))); err != nil {
						require.ErrorIs(t, err, outbox.ErrInvalidEvent)
						continue
					}
					saved++
				}
			}
			w.once()
			dead := w.count("SELECT COUNT(DISTINCT tenant_id) FROM bc_outbox_event WHERE status = 'DEAD'")
			require.LessOrEqual(t, dead, len(alike))
			require.Equal(t, saved-dead*(round+1), w.effects(), "round %d", round)
		}
	})
}

// Promise 2 and the time of CreatedAt: the address of the database asks for times of another zone.
func TestTimeZoneOfThePoolChangesNothing(t *testing.T) {
	t.Parallel()
	on(t, servers, func(t *testing.T, db *bun.DB) {
		dsn := testdb.DSN(t, testdb.Server(t, db))
		w := newWorld(t, foreignZone(t, dsn))
		var got []bus.Message[paid]
		bus.On(w.bus.Consumer("A", bus.ConsumerConfig{Concurrency: 1}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			got = append(got, m)
			return write(ctx, tx, m, 1)
		})
		w.save(paid{ID: "now"}, outbox.With(paid{ID: "just"}, outbox.DeliverAt(time.Now().Add(-time.Second))),
			outbox.With(paid{ID: "later"}, outbox.DeliverAt(time.Now().Add(time.Hour).In(time.FixedZone("east", 14*3600)))))
		w.once()
		require.Len(t, got, 2)
		for _, m := range got {
			require.WithinDuration(t, time.Now(), m.CreatedAt, 5*time.Minute)
		}
		events, err := w.ob.Events(t.Context(), outbox.Filter{Status: outbox.StatusScheduled})
		require.NoError(t, err)
		require.Len(t, events, 1)
		require.WithinDuration(t, time.Now().Add(time.Hour), events[0].NextRetryAt, 5*time.Minute)
	})
}
