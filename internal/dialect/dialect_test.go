package dialect_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func of(t *testing.T, db *bun.DB) dialect.Dialect {
	t.Helper()
	d, err := dialect.Of(db)
	require.NoError(t, err)
	return d
}

func number(t *testing.T, db bun.IDB, query string, args ...any) (n int64) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n), query)
	return n
}

// What is written and read as microseconds is the same instant in every session, whatever its time zone.
func TestTimesAreTheSameInEverySession(t *testing.T) {
	t.Parallel()
	zones := map[string][]string{
		"mysql":    {"SET time_zone = '+00:00'", "SET time_zone = '+08:00'", "SET time_zone = '-05:30'"},
		"postgres": {"SET TIME ZONE 'UTC'", "SET TIME ZONE 'Asia/Shanghai'", "SET TIME ZONE 'Europe/Berlin'"},
		"sqlite":   {"SELECT 1"},
	}
	instants := []time.Time{
		time.Date(2026, 3, 29, 1, 59, 59, 999_000_000, time.UTC), // the hour that Berlin leaves out is near
		time.Date(2026, 10, 25, 0, 30, 0, 1_000_000, time.UTC),   // and here the one that it has twice
		time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := of(t, db)
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_outbox_event (id, aggregate_type, aggregate_id, event_type, event_id, "+
			"event_payload) VALUES (1, 'A', '1', 'a.b', '1', '{}')")
		require.NoError(t, err)
		for _, zone := range zones[d.Name] {
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), zone)
			require.NoError(t, err)
			now := number(t, conn, "SELECT "+d.Micros(d.Now))
			require.WithinDuration(t, time.Now(), time.UnixMicro(now), time.Minute, zone)
			for _, at := range instants {
				_, err = conn.ExecContext(t.Context(), "UPDATE bc_outbox_event SET sent_at = "+d.At+", next_retry_at = "+d.After, at.UnixMicro(),
					dialect.Micro(-90*time.Minute))
				require.NoError(t, err)
				require.Equal(t, at, time.UnixMicro(number(t, conn, "SELECT "+d.Micros("sent_at")+" FROM bc_outbox_event")).UTC(), zone)
				require.Equal(t, at, time.UnixMicro(number(t, db, "SELECT "+d.Micros("sent_at")+" FROM bc_outbox_event")).UTC(),
					"read in another session than %s", zone)
				require.WithinDuration(t, time.Now().Add(-90*time.Minute),
					time.UnixMicro(number(t, db, "SELECT "+d.Micros("next_retry_at")+" FROM bc_outbox_event")), time.Minute)
			}
			require.NoError(t, conn.Raw(func(any) error { return nil }))
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // keep its time zone out of the pool
			_ = conn.Close()
		}
	})
}

func TestBulkWritesTouchWhatThePairsName(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := of(t, db)
		var pairs []dialect.Pair
		for i := range 700 {
			_, err := db.ExecContext(t.Context(), "INSERT INTO bc_outbox_event (id, aggregate_type, aggregate_id, event_type, event_id, "+
				"event_payload, lock_version) VALUES (?, 'A', '1', 'a.b', ?, '{}', ?)", i+1, fmt.Sprint(i), i%2)
			require.NoError(t, err)
			if i < 600 {
				pairs = append(pairs, dialect.Pair{ID: int64(i + 1), Version: 1})
			}
		}
		_, err := db.ExecContext(t.Context(), d.UpdateIDs("bc_outbox_event", pairs, "status = ?", "1 = 1"), "SENT")
		require.NoError(t, err)
		require.Equal(t, int64(300), number(t, db, "SELECT COUNT(*) FROM bc_outbox_event WHERE status = 'SENT'"))
		require.Equal(t, int64(300), number(t, db, "SELECT COUNT(*) FROM "+d.Keyed("bc_outbox_event")+" WHERE "+dialect.IDs(pairs)))
		for i := range pairs {
			pairs[i].Version = 0 // any
		}
		_, err = db.ExecContext(t.Context(), d.DeleteIDs("bc_outbox_event", pairs, "e.status <> 'DEAD'"))
		require.NoError(t, err)
		require.Equal(t, int64(100), number(t, db, "SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// PostgreSQL finds rows of several versions by their ids, also while bitmaps are off, as in claims.
func TestRowsOfSeveralVersionsAreFoundByTheirIDs(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "postgres")
	_, err := db.ExecContext(t.Context(), "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, lock_version) "+
		"SELECT 'A', i, 'a.b', i % 20 FROM generate_series(1, 50000) AS g(i); ANALYZE bc_event_consume_log")
	require.NoError(t, err)
	var pairs []dialect.Pair
	for i := range 200 {
		pairs = append(pairs, dialect.Pair{ID: int64(i*100 + 1), Version: int64(i % 3)})
	}
	require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		d := of(t, db)
		if _, err := tx.ExecContext(ctx, d.ByIndex); err != nil {
			return err
		}
		var plan []string
		err := tx.NewRaw("EXPLAIN "+d.UpdateIDs("bc_event_consume_log", pairs, "attempts = 1", "1 = 1")).Scan(ctx, &plan)
		require.NotContains(t, strings.Join(plan, "\n"), "Seq Scan")
		return err
	}))
}

// Real errors of real databases, as they reach us through bun.
func TestErrorsOfEveryDatabaseHaveTheirClass(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		insert := "INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload) " +
			"VALUES ('A', '1', 'a.b', 'same', '{}')"
		_, err := db.ExecContext(t.Context(), insert)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), insert)
		require.Equal(t, dialect.Duplicate, dialect.Classify(err), "%v", err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO bc_consumer (name, event_types, aliases) VALUES ('x', '[]', '[]'), ('x', '[]', '[]')")
		require.Equal(t, dialect.Duplicate, dialect.Classify(err), "a primary key, too: %v", err)
		_, err = db.ExecContext(t.Context(), "SELECT nonsense FROM nowhere")
		require.Equal(t, dialect.Schema, dialect.Classify(err), "%v", err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO bc_consumer (name, event_types, aliases) VALUES (NULL, '[]', '[]')")
		require.Equal(t, dialect.Data, dialect.Classify(err), "%v", err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = db.ExecContext(ctx, "SELECT 1")
		require.Equal(t, dialect.Other, dialect.Classify(err), "our own hurry says nothing about the database: %v", err)
		require.True(t, refusesWrites(t, db))
	})
}

// refusesWrites makes one session read-only and reports whether that is seen as such.
func refusesWrites(t *testing.T, db *bun.DB) bool {
	t.Helper()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	name := of(t, db).Name
	if name == "mysql" {
		return dialect.Classify(&MySQLError{Number: 1290}) == dialect.Unavailable // only a whole server can be made so
	}
	begin := map[string]string{"postgres": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "sqlite": "PRAGMA query_only = 1"}[name]
	_, err = conn.ExecContext(t.Context(), begin)
	require.NoError(t, err)
	_, err = conn.ExecContext(t.Context(), "DELETE FROM bc_consumer")
	require.Error(t, err)
	class := dialect.Classify(err)
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	return class == dialect.Unavailable
}

// MySQLError has the shape of the driver's error.
type MySQLError struct{ Number uint16 }

func (e *MySQLError) Error() string { return fmt.Sprintf("Error %d", e.Number) }

type stateError string

func (e stateError) Error() string    { return "ERROR " + string(e) }
func (e stateError) SQLState() string { return string(e) }

type codeError int

func (e codeError) Error() string { return fmt.Sprintf("sqlite %d", int(e)) }
func (e codeError) Code() int     { return int(e) }

// Error has the shape of that of mattn/go-sqlite3.
type Error struct{ Code, ExtendedCode int }

func (e Error) Error() string { return fmt.Sprintf("sqlite %d", e.ExtendedCode) }

func TestErrorClassesAndWhatPoisons(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err   error
		class dialect.Class
	}{
		{nil, dialect.Other},
		{errors.New("business"), dialect.Other},
		{&MySQLError{1213}, dialect.TxRetry},
		{fmt.Errorf("wrapped: %w", &MySQLError{1205}), dialect.TxRetry},
		{&MySQLError{1020}, dialect.TxRetry},
		{&MySQLError{2013}, dialect.Conn},
		{&MySQLError{1040}, dialect.Conn},
		{&MySQLError{1290}, dialect.Unavailable},
		{&MySQLError{1021}, dialect.Unavailable},
		{&MySQLError{1062}, dialect.Duplicate},
		{&MySQLError{1406}, dialect.Data},
		{errors.Join(errors.New("more"), fmt.Errorf("wrapped: %w", &MySQLError{1146})), dialect.Schema},
		{&MySQLError{1105}, dialect.Other},
		{stateError("40001"), dialect.TxRetry},
		{stateError("40P01"), dialect.TxRetry},
		{stateError("57P01"), dialect.Conn},
		{stateError("53300"), dialect.Conn},
		{stateError("25006"), dialect.Unavailable},
		{stateError("53100"), dialect.Unavailable},
		{stateError("22001"), dialect.Data},
		{stateError("23514"), dialect.Data},
		{stateError("23503"), dialect.Other}, // the row it refers to may yet come
		{stateError("42P01"), dialect.Schema},
		{stateError("57014"), dialect.Other}, // it took too long: that counts
		{codeError(275), dialect.Data},
		{codeError(787), dialect.Other},
		{codeError(1), dialect.Schema},
		{codeError(5), dialect.TxRetry},
		{codeError(517), dialect.TxRetry}, // SQLITE_BUSY_SNAPSHOT
		{codeError(13), dialect.Unavailable},
		{codeError(2067), dialect.Duplicate},
		{Error{Code: 1, ExtendedCode: 1}, dialect.Schema},
		{fmt.Errorf("wrapped: %w", Error{Code: 19, ExtendedCode: 2067}), dialect.Duplicate},
		{Error{Code: 5, ExtendedCode: 517}, dialect.TxRetry},
		{Error{Code: 19, ExtendedCode: 787}, dialect.Other},
		{driver.ErrBadConn, dialect.Conn},
		{io.ErrUnexpectedEOF, dialect.Conn},
		{sql.ErrConnDone, dialect.Conn},
		{errors.New("invalid connection"), dialect.Conn},
		{sql.ErrTxDone, dialect.Other},
		{context.DeadlineExceeded, dialect.Other},
	} {
		require.Equal(t, c.class, dialect.Classify(c.err), "%v", c.err)
		poisons := c.class == dialect.TxRetry || c.class == dialect.Conn || c.class == dialect.Unavailable
		require.Equal(t, poisons, dialect.Classify(c.err).Poisons())
	}
}
