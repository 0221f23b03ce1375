package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/ops"
)

// rows is every row of every table, as text.
func (d *deployment) rows() map[string][]string {
	d.t.Helper()
	tables := []string{
		"bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt", "bc_consumer", "bc_consumer_type", "bc_audit_log",
		"bc_job_lease", "bc_job_run", "bc_bulk_operation", "bc_instance", "bc_schema_version",
	}
	all := make(map[string][]string)
	for _, table := range tables {
		var found []map[string]any
		require.NoError(d.t, d.db.NewSelect().TableExpr(table).OrderExpr("1").Scan(d.t.Context(), &found))
		for _, row := range found {
			all[table] = append(all[table], fmt.Sprint(row))
		}
	}
	return all
}

// A dry run says what would be done, and changes nothing: not one row of any table.
func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.save(paid{OrderID: "1"}, paid{OrderID: "2"})
		d.work(bus.Permanent(errors.New("no")))
		d.ok("consumers", "pause", "Wallet", "--for", "1h", "--reason", "r")
		bulk := as[ops.Bulk](t, d.ok("dead", "retry", "--all", "--detach", "--rate", "0.1", "--reason", "r", "-o", "json"))
		require.Equal(t, ops.BulkRunning, bulk.State)
		require.Zero(t, d.shop("jobs", "run", consistency.JobCode, "--reason", "r").code)
		id := as[ops.Page[ops.Event]](t, d.ok("events", "list", "-o", "json")).Rows[0].EventID

		before := d.rows()
		require.NotEmpty(t, before["bc_audit_log"])
		for _, args := range [][]string{
			{"events", "retry", id},
			{"events", "skip", id, "--consumer", "Points"},
			{"events", "discard", id},
			{"consumers", "pause", "Points", "--indefinitely"},
			{"consumers", "resume", "Wallet"},
			{"consumers", "replay", "Wallet", "--since", "1h"},
			{"consumers", "replay", "Wallet", "--event", id},
			{"consumers", "backfill", "Wallet", "--since", "1h"},
			{"dead", "retry", "--all"},
			{"bulk", "cancel", bulk.ID},
			{"jobs", "run", consistency.JobCode},
			{"check", "run"},
			{"migrate", "up"},
			{"publish", "--type", "order.paid", "--payload", `{"orderId":"9"}`},
		} {
			r := d.shop(append(args, "--dry-run", "--reason", "r", "--output", "json")...)
			if args[0] == "migrate" {
				r = d.shop(append(args, "--dry-run", "--output", "json")...)
			}
			require.Zero(t, r.code, "%v: %s", args, r.errors)
			require.Equal(t, before, d.rows(), "%v", args)
			if args[0] != "publish" {
				require.Contains(t, r.out, `"dryRun": true`, "%v", args)
			}
		}
	})
}
