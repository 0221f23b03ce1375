package bustest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// seatTakenTwo is a later release's seatTaken: it says the row apart from the seat, and has a key.
type seatTakenTwo struct {
	Row  int    `json:"row"`
	Seat string `json:"seat"`
}

func (seatTakenTwo) EventType() string              { return "seat.taken" }
func (e seatTakenTwo) Aggregate() (kind, id string) { return "SEAT", e.Seat }
func (seatTakenTwo) SchemaVersion() int             { return 2 }
func (e seatTakenTwo) IdempotencyKey() string       { return fmt.Sprintf("seat:%d%s", e.Row, e.Seat) }

// A delayed event is delivered when its time has passed, and not before, however often the bus is drained.
func TestAdvanceMakesDelayedEventsDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h, mails := under(t, db)
		due := time.Now().Add(2 * time.Hour)
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return h.Outbox.Save(ctx, tx, outbox.With(seatTaken{Seat: "1"}, outbox.DeliverAt(due)))
		}))
		require.Equal(t, bustest.Report{}, h.Drain())
		require.WithinDuration(t, due, bustest.RequireSaved[seatTaken](h).DeliverAt, time.Millisecond)
		h.Advance(time.Hour)
		require.Equal(t, bustest.Report{}, h.Drain())
		require.Zero(t, mails.Load())
		h.Advance(time.Hour)
		require.Equal(t, bustest.Report{consumelog.Success: 2}, h.Drain())
		require.Equal(t, 1, count(t, db))
		require.Zero(t, bustest.RequireSaved[seatTaken](h).DeliverAt)
	})
}

// Time that has passed counts for MaxAge and for retention.
func TestAdvanceAgesWhatIsThere(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := bustest.New(t, db, bustest.DeliverOnce())
		bus.On(h.Bus.Consumer("Seats", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[seatTaken]) error { return nil })
		save(t, h, db, "1")
		require.Equal(t, bustest.Report{consumelog.Success: 1}, h.Drain())
		r, err := outbox.NewRetention(h.Outbox, outbox.RetentionConfig{})
		require.NoError(t, err)
		for _, want := range []int64{0, 1} {
			h.Advance(4 * 24 * time.Hour)
			n, err := r.RunOnce(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, n)
		}
	})
}

// A key is remembered as long as retention says, and forgotten after that.
func TestAdvanceAgesKeys(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := bustest.New(t, db, bustest.DeliverOnce())
		bus.On(h.Bus.Consumer("Seats", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[seatTakenTwo]) error { return nil })
		r, err := outbox.NewRetention(h.Outbox, outbox.RetentionConfig{KeepKeys: 30 * 24 * time.Hour})
		require.NoError(t, err)
		saveAgain := func() int {
			require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
				return h.Outbox.Save(ctx, tx, seatTakenTwo{Row: 1, Seat: "A"})
			}))
			return len(bustest.AllSaved[seatTakenTwo](h))
		}
		require.Equal(t, 1, saveAgain())
		h.Drain()
		h.Advance(8 * 24 * time.Hour)
		n, err := r.RunOnce(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, n, "the event is removed")
		h.Advance(29 * 24 * time.Hour)
		_, err = r.RunOnce(t.Context())
		require.NoError(t, err)
		require.Zero(t, saveAgain(), "its key is not forgotten yet")
		h.Advance(2 * 24 * time.Hour)
		_, err = r.RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, saveAgain(), "it is")
	})
}

// All times of the test's events move together: of what is live, archived, tried and removed.
func TestAdvanceMovesEveryTable(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := bustest.New(t, db, bustest.DeliverOnce())
		tries := 0
		bus.On(h.Bus.Consumer("Seats", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[seatTakenTwo]) error {
			if tries++; tries == 1 {
				return errors.New("not yet")
			}
			return nil
		})
		save := func(row int) {
			require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
				return h.Outbox.Save(ctx, tx, seatTakenTwo{Row: row, Seat: "A"})
			}))
			h.Drain()
		}
		save(1)
		h.Advance(8 * 24 * time.Hour)
		r, err := outbox.NewRetention(h.Outbox, outbox.RetentionConfig{Archive: true})
		require.NoError(t, err)
		n, err := r.RunOnce(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		tries = 0
		save(2)
		d, err := dialect.Of(db)
		require.NoError(t, err)
		times := func() map[string]int64 {
			found := make(map[string]int64)
			for table, columns := range map[string][]string{
				"bc_outbox_event":              {"created_at", "sent_at"},
				"bc_event_consume_log":         {"created_at", "consumed_at", "first_run_at"},
				"bc_outbox_event_archive":      {"created_at", "sent_at", "archived_at"},
				"bc_event_consume_log_archive": {"created_at", "consumed_at", "first_run_at", "archived_at"},
				"bc_delivery_attempt":          {"created_at"},
				"bc_event_key":                 {"removed_at"},
			} {
				for _, column := range columns {
					var micros int64
					require.NoError(t, db.QueryRowContext(t.Context(), "SELECT MAX("+d.Micros(column)+") FROM "+table).Scan(&micros), table)
					found[table+"."+column] = micros
				}
			}
			return found
		}
		before := times()
		h.Advance(time.Hour)
		for column, micros := range times() {
			require.Equal(t, time.Hour, time.Duration(before[column]-micros)*time.Microsecond, column)
		}
	})
}

// What is said of a saved event is all that was stored, as a handler of this release gets it.
func TestSavedIsComplete(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := bustest.New(t, db)
		h.Bus.Upcast("seat.taken", 1, func(old json.RawMessage) (json.RawMessage, error) {
			var e seatTaken
			err := json.Unmarshal(old, &e)
			return fmt.Appendf(nil, `{"row": %s, "seat": %q}`, e.Seat[:2], e.Seat[2:]), err
		})
		bus.On(h.Bus.Consumer("Seats", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[seatTakenTwo]) error { return nil })
		ctx := bus.WithMetadata(t.Context(), bus.Metadata{bus.MetaRequestID: "r1"})
		require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return h.Outbox.Save(ctx, tx, outbox.With(seatTaken{Seat: "12A"}, outbox.Tenant(7, 3), outbox.Meta("source", "web")),
				seatTakenTwo{13, "B"})
		}))
		all := bustest.AllSaved[seatTakenTwo](h)
		require.Len(t, all, 2)
		old, now := all[0], all[1]
		require.Equal(t, seatTakenTwo{12, "A"}, old.Payload, "upcast")
		require.Equal(t, 1, old.SchemaVersion)
		require.Equal(t, []int64{7, 3}, []int64{old.TenantID, old.StoreID})
		require.Equal(t, "web", old.Metadata["source"])
		require.Equal(t, "r1", old.Metadata[bus.MetaRequestID])
		require.Equal(t, "SEAT", old.AggregateType)
		require.Equal(t, "12A", old.AggregateID)
		require.Equal(t, 10, old.MaxAttempts)
		require.Empty(t, old.IdempotencyKey)
		require.WithinDuration(t, time.Now(), old.CreatedAt, time.Hour)
		require.Equal(t, seatTakenTwo{13, "B"}, now.Payload)
		require.Equal(t, "seat:13B", now.IdempotencyKey)
		require.Zero(t, now.TenantID)
	})
}

// verdict is a test that a helper has failed.
type verdict struct {
	testing.TB
	mu   sync.Mutex
	said string
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.said = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failing is what a helper says of a test that it fails.
func failing(v *verdict, fn func()) string {
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	<-done
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.said
}

func TestRequireSavedAndNotSaved(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		v := &verdict{TB: t}
		h := bustest.New(v, db)
		bustest.RequireNotSaved[seatTaken](h)
		require.Contains(t, failing(v, func() {
			bustest.RequireSaved[seatTaken](h)
		}), "0 events of type seat.taken have been saved, want exactly 1")
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, h.Outbox.Save(t.Context(), tx, seatTaken{Seat: "0"}))
		require.NoError(t, tx.Rollback())
		bustest.RequireNotSaved[seatTaken](h)
		save(t, h, db, "1")
		require.Contains(t, failing(v, func() {
			bustest.RequireNotSaved[seatTaken](h)
		}), "1 events of type seat.taken have been saved, want none; the first one is ")
		require.Contains(t, failing(v, func() { h.Advance(-time.Second) }), "time passes forwards only, such as h.Advance(time.Hour)")
	})
}

// Each call makes a database of its own, which is gone with the test.
func TestNewDBIsFreshAndGoesWithTheTest(t *testing.T) {
	t.Parallel()
	first, second := bustest.New(t, bustest.NewDB(t)), bustest.New(t, bustest.NewDB(t))
	bustest.Deliver(first, seatTaken{Seat: "1"})
	bustest.RequireSaved[seatTaken](first)
	bustest.RequireNotSaved[seatTaken](second)
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, err := url.Parse(testdb.DSN(t, name))
			require.NoError(t, err)
			admin := testdb.OpenDSN(t, dsn.String())
			var made []string
			t.Run("test", func(t *testing.T) {
				open := func(database string) (*bun.DB, error) {
					made = append(made, database)
					other := *dsn
					other.Path = "/" + database
					return testdb.OpenDSN(t, other.String()), nil
				}
				first := bustest.New(t, bustest.NewDB(t, bustest.OnServer(admin, open)))
				second := bustest.New(t, bustest.NewDB(t, bustest.OnServer(admin, open)))
				bustest.Deliver(first, seatTaken{Seat: "1"})
				bustest.RequireSaved[seatTaken](first)
				bustest.RequireNotSaved[seatTaken](second)
			})
			require.Len(t, made, 2)
			var left int
			databases := "information_schema.schemata WHERE schema_name IN (?)"
			if testdb.Dialect(name) == "postgres" {
				databases = "pg_database WHERE datname IN (?)"
			}
			require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+databases, bun.List(made)).Scan(&left))
			require.Zero(t, left)
		})
	}
}
