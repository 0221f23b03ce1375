package handler_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type payload struct{ N int }

// registrations are those of a bus that has only its metrics.
func registrations(t *testing.T) (*handler.Registrations, *strings.Builder) {
	t.Helper()
	all, log := handler.NewRegistrations(), new(strings.Builder)
	all.Logger = slog.New(slog.NewTextHandler(log, nil))
	all.Tracer = tracenoop.NewTracerProvider().Tracer("")
	var err error
	all.Metrics, err = telemetry.NewMetrics(noop.NewMeterProvider())
	require.NoError(t, err)
	return all, log
}

// handlerOf makes a handler of an event type, in version 2.
func handlerOf(eventType string, run func(ctx context.Context, tx handler.Transaction, ms []*handler.Message) error) *handler.Handler {
	return &handler.Handler{
		EventType: eventType, Version: 2, Type: reflect.TypeFor[payload](), Run: run,
		Decode: func(p json.RawMessage) (any, error) {
			out := new(payload)
			return out, json.Unmarshal(p, out)
		},
	}
}

func messages(eventType string, payloads ...string) []*handler.Message {
	ms := make([]*handler.Message, len(payloads))
	for i, p := range payloads {
		ms[i] = &handler.Message{Event: &eventrow.Row{ID: p, Type: eventType, SchemaVersion: 2, Payload: json.RawMessage(p), MaxAttempts: 10}}
	}
	return ms
}

func call(t *testing.T, c *handler.Consumer, tx handler.Transaction, ms []*handler.Message) error {
	t.Helper()
	prepared, err := c.Prepare(ms)
	require.NoError(t, err)
	_, err = prepared.Run(t.Context(), tx)
	return err
}

// An external handler has 25 attempts within about nine days; a consumer may say otherwise.
func TestExternalHandlersHavePatience(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	c := handler.NewConsumer(all, "A", "A", handler.Config{})
	outside := handlerOf("out", nil)
	outside.External = true
	c.Add(outside)
	c.Add(handlerOf("in", nil))
	require.Equal(t, 10, c.MaxAttempts(&eventrow.Row{Type: "in", MaxAttempts: 10}))
	require.Equal(t, 1, c.MaxAttempts(&eventrow.Row{Type: "in"}))
	require.Equal(t, 25, c.MaxAttempts(&eventrow.Row{Type: "out", MaxAttempts: 10}))
	require.Equal(t, 40, c.MaxAttempts(&eventrow.Row{Type: "out", MaxAttempts: 40}))
	var least, most time.Duration
	for n := 1; n < 25; n++ {
		d := c.Backoff(t.Context(), "out", n)
		whole := min(time.Second<<min(n, 30), 24*time.Hour)
		require.GreaterOrEqual(t, d, whole*3/4)
		require.LessOrEqual(t, d, min(whole*5/4, 24*time.Hour))
		least, most = least+whole*3/4, most+min(whole*5/4, 24*time.Hour)
		in := c.Backoff(t.Context(), "in", n)
		require.LessOrEqual(t, in, 10*time.Minute)
		require.GreaterOrEqual(t, in, min(time.Second<<min(n, 20), 10*time.Minute)/2)
	}
	require.Greater(t, least, 7*24*time.Hour)
	require.Less(t, most, 10*24*time.Hour)
	require.Equal(t, 15*24*time.Hour, c.MaxAge("out"), "the attempts are used up before")
	require.Equal(t, 24*time.Hour, c.MaxAge("in"))
	require.Equal(t, 3, handler.NewConsumer(all, "B", "B", handler.Config{MaxAttempts: 3}).MaxAttempts(&eventrow.Row{MaxAttempts: 10}))
	require.Zero(t, handler.NewConsumer(all, "B", "B", handler.Config{MaxAge: -1}).MaxAge("in"), "no limit")
	require.Zero(t, handler.NewConsumer(all, "B", "B", handler.Config{SlowCadence: time.Hour}).MaxAge("in"), "no limit")
}

// A Backoff of the user's that is of no use is said so, and replaced.
func TestBackoffThatIsOfNoUseIsReplaced(t *testing.T) {
	t.Parallel()
	for says, fn := range map[string]func(int) time.Duration{
		"Backoff(1) panicked: oh": func(int) time.Duration { panic("oh") },
		"Backoff(1) is -1s":       func(int) time.Duration { return -time.Second },
	} {
		all, log := registrations(t)
		c := handler.NewConsumer(all, "A", "A", handler.Config{Backoff: fn})
		d := c.Backoff(t.Context(), "in", 1)
		require.True(t, d >= time.Second && d <= 2*time.Second, "the default, not %v", d)
		require.Contains(t, log.String(), says)
	}
	all, log := registrations(t)
	c := handler.NewConsumer(all, "A", "A", handler.Config{Backoff: func(n int) time.Duration { return time.Duration(n) * time.Hour }})
	require.Equal(t, 3*time.Hour, c.Backoff(t.Context(), "in", 3))
	require.Empty(t, log.String())
}

// What a consumer knows of its handlers.
func TestConsumerKnowsItsHandlers(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	c := handler.NewConsumer(all, "New", "Old", handler.Config{Concurrency: 2})
	require.Equal(t, 2, c.Config.Concurrency)
	require.Equal(t, handler.MaxBatch, c.Config.Batch)
	require.False(t, c.IsVersioned())
	c.Add(handlerOf("b", nil))
	outside := handlerOf("a", nil)
	outside.External = true
	c.Add(outside)
	require.Equal(t, []string{"a", "b"}, c.EventTypes())
	require.Equal(t, []string{"a"}, c.ExternalTypes())
	require.True(t, c.Knows("b", 1) && c.Knows("b", 2))
	require.False(t, c.Knows("b", 3) || c.Knows("c", 1))
	require.True(t, c.IsVersioned())
	require.False(t, c.RunsAlone("b") || c.RunsAlone("c"))
	replays := c.ReplaysAs("New (replay)", "Old!", handler.Config{Batch: 1})
	require.Same(t, c, replays.Replays)
	require.Same(t, c.Handler("b"), replays.Handler("b"))
	all.Close()
	require.True(t, all.Closed)
	require.Same(t, all, handler.Of(handler.AccessTo(all)))
}

// Handlers are called in order, a batch handler once for a run of its type, and an error says which messages it was about.
func TestCallsSayWhichMessagesWereRefused(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	c := handler.NewConsumer(all, "A", "A", handler.Config{})
	var called []int
	one := handlerOf("one", func(_ context.Context, _ handler.Transaction, ms []*handler.Message) error {
		called = append(called, len(ms))
		ms[0].Record.Key = "done"
		return nil
	})
	many := handlerOf("many", func(_ context.Context, _ handler.Transaction, ms []*handler.Message) error {
		called = append(called, len(ms))
		return errors.New("no")
	})
	many.Batch = true
	c.Add(one)
	c.Add(many)
	ms := append(messages("one", `{"N":1}`, `{"N":2}`), messages("many", `{"N":3}`, `{"N":4}`, `{"N":5}`)...)
	err := call(t, c, handler.Transaction{}, ms)
	var refused *handler.RefusalError
	require.ErrorAs(t, err, &refused)
	require.EqualError(t, err, "no")
	require.Equal(t, [2]int{2, 3}, [2]int{refused.First, refused.Count})
	require.Equal(t, []int{1, 1, 3}, called)
	require.Equal(t, "done", ms[0].Record.Key)
	require.Nil(t, ms[0].Payload, "another run decodes anew")
}

// Payloads that cannot be decoded are refused for good: malformed rows, unknown types, JSON that does not fit, and upcasters that fail.
func TestWhatCannotBeDecodedIsRefused(t *testing.T) {
	t.Parallel()
	all, _ := registrations(t)
	all.Upcasters["one"] = map[int]handler.Upcaster{1: func(p json.RawMessage) (json.RawMessage, error) {
		if string(p) == `"panic"` {
			panic("of a secret")
		}
		if string(p) == `"exit"` {
			runtime.Goexit()
		}
		return nil, errors.New("cannot be lifted")
	}}
	c := handler.NewConsumer(all, "A", "A", handler.Config{})
	c.Add(handlerOf("one", nil))
	for says, row := range map[string]*eventrow.Row{
		"row is malformed: no JSON":         {Type: "one", Malformed: "no JSON"},
		"has no handler for two":            {Type: "two"},
		"end of JSON input":                 {Type: "one", SchemaVersion: 2, Payload: json.RawMessage("{")},
		"cannot be lifted":                  {Type: "one", SchemaVersion: 1, Payload: json.RawMessage("{}")},
		"newer than version 2 of this code": {Type: "one", SchemaVersion: 3, Payload: json.RawMessage("{}")},
		"decoding it, with a string":        {Type: "one", Payload: json.RawMessage(`"panic"`)},
		"runtime.Goexit was called":         {Type: "one", Payload: json.RawMessage(`"exit"`)},
	} {
		_, err := c.Prepare([]*handler.Message{{Event: row}})
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := all.Upcast("three", 1, 2, nil)
	require.ErrorContains(t, err, "has no upcaster from 1")
}

// The answers of handlers are found however deep they are wrapped, and are nil for no error.
func TestAnswersAreFoundInsideOfErrors(t *testing.T) {
	t.Parallel()
	cause := errors.New("no")
	require.NoError(t, errors.Join(handler.Permanent(nil), handler.RetryAfter(nil, 0), handler.Unavailable(nil)))
	require.True(t, handler.IsPermanent(errors.Join(handler.Permanent(cause))))
	var later *handler.RetryAfterError
	require.ErrorAs(t, handler.RetryAfter(cause, -time.Second), &later)
	require.Zero(t, later.Delay)
	for _, err := range []error{handler.Permanent(cause), handler.RetryAfter(cause, 0), handler.Unavailable(cause)} {
		require.ErrorIs(t, err, cause)
		require.EqualError(t, err, "no")
	}
	require.EqualError(t, &handler.SkipError{Reason: "a test"}, "skipped: a test")
}

// fenced is a database with a table, and a call of a handler in a fenced transaction on it.
func fenced(
	t *testing.T, deliveries int, run func(ctx context.Context, tx handler.Transaction) error,
) (*bun.DB, *handler.Consumer, *handler.Fence, error) {
	t.Helper()
	db := testdb.Open(t, "sqlite")
	_, err := db.ExecContext(t.Context(), "CREATE TABLE effect (n INT PRIMARY KEY)")
	require.NoError(t, err)
	all, _ := registrations(t)
	all.DB = db
	require.True(t, all.HasOneWriter())
	c := handler.NewConsumer(all, "A", "A", handler.Config{})
	c.Add(handlerOf("one", func(ctx context.Context, tx handler.Transaction, _ []*handler.Message) error { return run(ctx, tx) }))
	tx, fence, err := handler.Begin(t.Context(), db, nil)
	require.NoError(t, err)
	failed := call(t, c, fence.Transaction(tx, prepared.New(db), deliveries), messages("one", `{}`))
	if fence.Poisoned() == nil && failed == nil {
		require.NoError(t, tx.Commit())
	}
	fence.End(tx, failed != nil, false)
	fence.End(tx, true, false) // again
	return db, c, fence, failed
}

func effects(t *testing.T, db *bun.DB) (n int) {
	t.Helper()
	require.NoError(t, db.NewRaw("SELECT COUNT(*) FROM effect").Scan(t.Context(), &n))
	return n
}

// Both forms of a transaction write to the same one.
func TestBothFormsAreOneTransaction(t *testing.T) {
	t.Parallel()
	db, _, _, err := fenced(t, 2, func(ctx context.Context, tx handler.Transaction) error {
		if _, err := tx.Bun.ExecContext(ctx, "INSERT INTO effect VALUES (?)", 1); err != nil {
			return err
		}
		stmt, err := tx.SQL.PrepareContext(ctx, "INSERT INTO effect VALUES (@n)")
		if err != nil {
			return err
		}
		defer stmt.Close()
		if _, err := stmt.ExecContext(ctx, sql.Named("n", 2)); err != nil {
			return err
		}
		rows, err := tx.SQL.QueryContext(ctx, "SELECT n FROM effect ORDER BY n")
		if err != nil {
			return err
		}
		defer rows.Close()
		types, err := rows.ColumnTypes()
		if err != nil {
			return err
		}
		length, hasLength := types[0].Length()
		_, _, isDecimal := types[0].DecimalSize()
		_, knowsNull := types[0].Nullable()
		require.Equal(t, "INT", types[0].DatabaseTypeName())
		require.NotNil(t, types[0].ScanType())
		require.False(t, hasLength && length == 0)
		require.False(t, isDecimal)
		_ = knowsNull
		var seen []int
		for rows.Next() {
			var n int
			if err := rows.Scan(&n); err != nil {
				return err
			}
			seen = append(seen, n)
		}
		require.Equal(t, []int{1, 2}, seen)
		require.False(t, rows.NextResultSet())
		return rows.Err()
	})
	require.NoError(t, err)
	require.Equal(t, 2, effects(t, db))
}

// What ends a transaction is remembered by its fence, whatever the handler answers.
func TestFenceRemembersWhatEndedTheTransaction(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(ctx context.Context, tx handler.Transaction) error
		says string
	}{
		"Commit":    {func(_ context.Context, tx handler.Transaction) error { return ignore(tx.SQL.Commit()) }, "called Commit;"},
		"Rollback":  {func(_ context.Context, tx handler.Transaction) error { return ignore(tx.SQL.Rollback()) }, "called Rollback;"},
		"Statement": {exec("COMMIT"), "by COMMIT"},
		"Ended":     {exec("INSERT OR ROLLBACK INTO effect VALUES (1), (1)"), "by a statement that failed"},
		"Hidden":    {exec("DELETE FROM effect; COMMIT"), "by something inside of DELETE"},
		"Vacuum":    {exec("PRAGMA user_version = 3"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, _, fence, err := fenced(t, 1, func(ctx context.Context, tx handler.Transaction) error {
				if err := c.run(ctx, tx); err != nil {
					return err
				}
				_, err := tx.SQL.ExecContext(ctx, "INSERT INTO effect VALUES (7)")
				if c.says != "" {
					require.ErrorIs(t, err, sql.ErrTxDone)
					require.ErrorIs(t, tx.SQL.QueryRowContext(ctx, "SELECT 1").Err(), sql.ErrTxDone)
				}
				return nil
			})
			require.NoError(t, err, "the handler has swallowed it")
			if c.says == "" {
				require.NoError(t, fence.Poisoned())
				require.Equal(t, 1, effects(t, db))
				return
			}
			require.ErrorIs(t, fence.Poisoned(), handler.ErrEnds)
			require.ErrorContains(t, fence.Poisoned(), c.says)
			require.Zero(t, effects(t, db))
		})
	}
}

func ignore(error) error { return nil }

func exec(query string) func(ctx context.Context, tx handler.Transaction) error {
	return func(ctx context.Context, tx handler.Transaction) error {
		_, err := tx.SQL.ExecContext(ctx, query)
		return ignore(err)
	}
}

// SQL that may end a transaction is not sent while several deliveries are in it, and its handler is known from then on.
func TestWhatMayEndATransactionRunsAlone(t *testing.T) {
	t.Parallel()
	db, c, fence, _ := fenced(t, 2, exec("INSERT INTO effect VALUES (1); INSERT INTO effect VALUES (2)"))
	require.ErrorIs(t, fence.Poisoned(), handler.ErrNotAlone)
	require.Zero(t, effects(t, db))
	require.True(t, c.RunsAlone("one"))
	db, c, fence, _ = fenced(t, 1, exec("INSERT INTO effect VALUES (1); INSERT INTO effect VALUES (2)"))
	require.NoError(t, fence.Poisoned())
	require.Equal(t, 2, effects(t, db))
	require.False(t, c.RunsAlone("one"))
}
