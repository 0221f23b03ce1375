package store

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// columns are those of each table that a publisher works on, as migrations.Up leaves them, and a look at its primary key
// that finds no row.
var columns = []struct{ table, nothing, names, mysql string }{ //nolint:gochecknoglobals // a constant table
	{
		"bc_consumer", "name = ''",
		"name, display_name, event_types, aliases, replayable, paused_until, paused_by, pause_reason, registered_at, seen_at", "",
	},
	{"bc_consumer_type", "consumer_name = ''", "consumer_name, event_type, seen_at, registered_at", ""},
	{
		"bc_outbox_event", "id = 0",
		"id, tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, schema_version, " +
			"status, retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, sent_at, " +
			"trace_id, event_key",
		", open_aggregate, in_hand",
	},
	{
		"bc_event_consume_log", "id = 0",
		"id, tenant_id, consumer_name, event_id, event_type, status, idempotency_key, consume_result, error_message, outbox_id, " +
			"aggregate_type, " +
			"aggregate_id, attempts, started, first_run_at, next_retry_at, locked_by, lock_version, consumed_at, created_at, updated_at",
		", open_aggregate",
	},
	{
		"bc_delivery_attempt", "id = 0",
		"id, consumer_name, event_id, attempt, outcome, error_message, instance, duration_us, created_at", "",
	},
	{"bc_event_key", "event_id = ''", "event_id, removed_at", ""},
	{
		"bc_bulk_operation", "id = 0",
		"id, operation_id, action, request, state, actor, reason, total, total_more, up_to, next_cursor, seen, done, passed, consumer_name, " +
			"reached, locked_by, locked_until, lock_version, error_message, created_at, updated_at, finished_at", "",
	},
	{
		"bc_instance", "name = ''",
		"name, run_id, host, version, in_flight, clock_offset_us, draining, circuits, started_at, seen_at", "",
	},
}

// TablesError says that the tables are older than the code, or newer than it can work with.
type TablesError struct {
	Table string
	Err   error // of the database
}

// Error names the table and what to do.
func (e *TablesError) Error() string {
	return fmt.Sprintf("the table %s is not as this release needs it: run migrations.Up of this release before its publisher, "+
		"or a newer release if one has changed the tables since: %v", e.Table, e.Err)
}

// Unwrap is what the database said.
func (e *TablesError) Unwrap() error { return e.Err }

// CheckTables makes sure that every table and column is there that a publisher works on; it reads no row. If one is
// missing the answer is a [TablesError]. It does not look at bc_schema_version: the SQL may have been applied by other means.
func CheckTables(ctx context.Context, idb bun.IDB, d dialect.Dialect) error {
	for _, t := range columns {
		names := t.names
		if d.Name == "mysql" {
			names += t.mysql
		}
		_, err := idb.ExecContext(ctx, "SELECT "+names+" FROM "+t.table+" WHERE "+t.nothing)
		switch {
		case err == nil:
		case dialect.Classify(err) == dialect.Schema:
			return &TablesError{Table: t.table, Err: err}
		default:
			return fmt.Errorf("look at %s: %w", t.table, err)
		}
	}
	return nil
}
