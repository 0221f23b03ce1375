package ops_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// crowded is a deployment with rows of all that operators look at.
func crowded(t *testing.T, dialect string) *fixture {
	t.Helper()
	f := newFixture(t, testdb.Open(t, dialect), ops.Config{}).consumers()
	f.die(2)
	_, err := f.ops.StartBulk(t.Context(), op, retries("malformed"))
	require.NoError(t, err)
	f.exec("INSERT INTO bc_instance (name, run_id, host, version, in_flight, clock_offset_us, seen_at) VALUES ('a', 'a', 'a', 'a', 0, 0, " +
		f.now(0) + ")")
	f.exec("INSERT INTO bc_inbox (inbox, partition_name, updated_at) VALUES ('a', '0', " + f.now(0) + ")")
	f.reserve("reserved", "shop", "PREPARED", time.Hour)
	return f
}

// retries is a bulk operation that is done soon.
func retries(id string) ops.NewBulk {
	return ops.NewBulk{ID: id, Action: ops.ActionRetry, Query: ops.Query{Status: "DEAD"}, Rate: 10_000}
}

// looked is what an operator sees: an error for each view that cannot be read.
func (f *fixture) looked() error {
	ctx := f.t.Context()
	var errs []error
	look := func(what string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", what, err))
		}
	}
	_, err := f.ops.Overview(ctx)
	look("overview", err)
	_, err = f.ops.Consumers(ctx)
	look("consumers", err)
	_, err = f.ops.Dead(ctx)
	look("dead", err)
	_, err = f.ops.Doctor(ctx)
	look("doctor", err)
	_, err = f.ops.Jobs(ctx)
	look("jobs", err)
	_, err = f.ops.Instances(ctx)
	look("instances", err)
	_, err = f.ops.Brokers(ctx)
	look("brokers", err)
	_, err = f.ops.Reservations(ctx)
	look("reservations", err)
	_, err = f.ops.Audit(ctx, ops.AuditQuery{})
	look("audit", err)
	_, err = f.ops.Bulks(ctx, "", 10)
	look("bulk operations", err)
	found, err := f.ops.Events(ctx, ops.Query{})
	look("events", err)
	for _, e := range found.Rows {
		_, err = f.ops.Event(ctx, e.EventID)
		look("event", err)
	}
	if len(found.Rows) == 0 {
		look("events", errors.New("none is found"))
	}
	return errors.Join(errs...)
}

// A text in a column of numbers, which SQLite alone takes, keeps nobody from looking at the other rows, nor from working on them.
func TestTextAmongNumbersHidesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range testdb.SQLiteNumbers(t) {
		t.Run(c.Table+"."+c.Name, func(t *testing.T) {
			t.Parallel()
			f := crowded(t, "sqlite")
			f.exec("UPDATE " + c.Table + " SET " + c.Name + " = 'x'")
			require.NoError(t, f.looked())
			f.requireNamed(c)
			_, err := f.ops.StartBulk(t.Context(), op, retries("good"))
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
				defer cancel()
				_, _ = f.ops.RunBulkOnce(ctx) // it may report the malformed one
				b, err := f.ops.Bulk(t.Context(), "good")
				return err == nil && b.State == ops.BulkDone
			}, testdb.Patience(), time.Millisecond)
		})
	}
}

// requireNamed looks that the doctor names a column that holds texts, if its table has rows.
func (f *fixture) requireNamed(c testdb.Column) {
	f.t.Helper()
	report, err := f.ops.Doctor(f.t.Context())
	require.NoError(f.t, err)
	var named []string
	for _, finding := range report {
		if finding.Rule == "no_number" {
			named = append(named, finding.Args["table"]+"."+finding.Args["column"])
		}
	}
	var rows int
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), "SELECT COUNT(*) FROM "+c.Table).Scan(&rows))
	if rows > 0 {
		require.Equal(f.t, []string{c.Table + "." + c.Name}, named)
	} else {
		require.Empty(f.t, named)
	}
}

// A flag is 0 or 1. Another number is no reason to show nothing.
func TestFlagsOfMalformedRows(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			f := crowded(t, dialect)
			f.exec("UPDATE bc_instance SET draining = 7")
			f.exec("UPDATE bc_bulk_operation SET total_more = 7")
			f.exec("UPDATE bc_consumer SET replayable = 7")
			require.NoError(t, f.looked())
		})
	}
}
