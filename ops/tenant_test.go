package ops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// foreign stands in every text of the other tenant.
const foreign = "secret-of-two"

// tenants is a deployment with two tenants, who have entities of the same names.
type tenants struct {
	*fixture
	mine, theirs string // event ids
	bulk         string // of the other tenant
}

func newTenants(t *testing.T, db *bun.DB) tenants {
	t.Helper()
	lacks := lacksAlways{}
	section := func(_ context.Context, _ string) (*ops.Facts, error) {
		return &ops.Facts{Title: "Host", Rows: []ops.Fact{{Name: "owner", Value: foreign}}}, nil
	}
	f := newFixture(t, db, ops.Config{Checks: lacks, Sections: []ops.Section{section}}).consumers()
	x := tenants{fixture: f, bulk: "bulk-of-two"}
	f.save(outbox.With(paid{OrderID: "7", Note: "die"}, outbox.Tenant(1, 0)),
		outbox.With(paid{OrderID: "7", Note: "die"}, outbox.Tenant(2, 0)))
	f.save(outbox.With(noted{OrderID: "8"}, outbox.Tenant(1, 0)),
		outbox.With(noted{OrderID: "theirs-8"}, outbox.Tenant(2, 0), outbox.Meta("source", foreign)))
	f.once()
	x.mine, x.theirs = outbox.EventID(1, "order.paid", "order:7:paid"), outbox.EventID(2, "order.paid", "order:7:paid")
	f.exec("UPDATE bc_event_consume_log SET error_message = ?, idempotency_key = ?, consume_result = ? WHERE tenant_id = 2", foreign+" 1",
		foreign, `{"x":"`+foreign+`"}`)
	f.exec("UPDATE bc_outbox_event SET last_error = ?, trace_id = 'shared-trace' WHERE tenant_id = 2", foreign)
	f.exec("UPDATE bc_outbox_event SET trace_id = 'shared-trace' WHERE tenant_id = 1")
	f.exec("UPDATE bc_delivery_attempt SET error_message = ? WHERE event_id = ?", foreign, x.theirs)
	f.exec("INSERT INTO bc_audit_log (actor, action, target, reason, details) "+
		"VALUES ('anna', 'release', 'ORDER/7', ?, ?), ('anna', 'look', ?, ?, ?)", foreign, foreign, x.theirs, foreign, foreign)
	f.exec("INSERT INTO bc_job_run (job_code, instance, status, error_message) VALUES ('j', 'i', 'FAILED', ?)", foreign)
	f.exec("INSERT INTO bc_job_lease (job_code) VALUES ('j')")
	f.reserve(x.theirs, foreign, "PREPARED", time.Hour)
	f.reserve(x.mine, foreign, "PREPARED", time.Hour)
	f.reserve("reserved-of-two", foreign, "PREPARED", -time.Hour)
	_, err := f.ops.StartBulk(t.Context(), ops.Operation{Actor: "anna", Reason: foreign},
		ops.NewBulk{ID: x.bulk, Action: ops.ActionRetry, Query: ops.Query{TenantID: 2, Consumer: "Moody"}})
	require.NoError(t, err)
	require.NoError(t, f.ops.CancelBulk(t.Context(), op, x.bulk))
	return x
}

type lacksAlways struct{}

func (lacksAlways) Lacks(context.Context, string) (map[string][]string, error) {
	return map[string][]string{"check": {foreign}}, nil
}

// all is the rows of the other tenant, and what concerns everybody.
func (x tenants) all() string {
	x.t.Helper()
	var b strings.Builder
	for _, query := range []string{
		"SELECT event_id, status, '' FROM bc_outbox_event WHERE tenant_id = 2 OR tenant_id IS NULL ORDER BY id",
		"SELECT consumer_name, status, event_id FROM bc_event_consume_log WHERE tenant_id = 2 ORDER BY id",
		"SELECT operation_id, state, '' FROM bc_bulk_operation WHERE operation_id = 'bulk-of-two'",
		"SELECT name, COALESCE(paused_by, ''), event_types FROM bc_consumer ORDER BY name",
		"SELECT job_code, COALESCE(locked_by, ''), COALESCE(last_status, '') FROM bc_job_lease ORDER BY job_code", "SELECT actor, action, " +
			"target FROM bc_audit_log WHERE actor = 'mallory' AND target IN (SELECT event_id FROM bc_outbox_event WHERE tenant_id = 2 " +
			"UNION SELECT name FROM bc_consumer) ORDER BY id",
	} {
		rows, err := x.db.QueryContext(x.t.Context(), query)
		require.NoError(x.t, err)
		defer rows.Close()
		for rows.Next() {
			var a, b1, c string
			require.NoError(x.t, rows.Scan(&a, &b1, &c))
			fmt.Fprintln(&b, a, b1, c)
		}
		require.NoError(x.t, rows.Err())
	}
	return b.String()
}

// calls are all functions of an Ops, each asked in every way that may lead to the other tenant.
func (x tenants) calls() map[string]func(ctx context.Context) []any {
	o, by := x.ops, ops.Operation{Actor: "mallory", Reason: "r"}
	both := func(v any, err error) []any { return []any{v, err} }
	only := func(err error) []any { return []any{err} }
	queries := []ops.Query{
		{},
		{TenantID: 2},
		{EventID: x.theirs},
		{AggregateID: "7"},
		{AggregateType: "ORDER", AggregateID: "7"},
		{AggregateID: "theirs-8"},
		{IdempotencyKey: "order:7:paid"},
		{IdempotencyKey: foreign},
		{TraceID: "shared-trace"},
		{Consumer: "Moody"},
		{Consumer: "Steady", DeliveryStatus: "SUCCESS"},
		{Status: outbox.StatusDead},
		{Status: outbox.StatusSent},
		{EventType: "order.paid"},
		{Since: time.Now().Add(-time.Hour)},
	}
	many := func(do func(q ops.Query) []any) (out []any) {
		for _, q := range queries {
			out = append(out, do(q)...)
		}
		return out
	}
	return map[string]func(ctx context.Context) []any{
		"Overview": func(ctx context.Context) []any { return both(o.Overview(ctx)) },
		"Events": func(ctx context.Context) []any {
			return many(func(q ops.Query) []any { return both(o.Events(ctx, q)) })
		},
		"Count": func(ctx context.Context) []any { return many(func(q ops.Query) []any { return both(o.Count(ctx, q)) }) },
		"Event": func(ctx context.Context) []any {
			return append(both(o.Event(ctx, x.theirs)), both(o.Event(ctx, x.mine))...)
		},
		"EventTypes":       func(ctx context.Context) []any { return both(o.EventTypes(ctx)) },
		"PublishableTypes": func(context.Context) []any { return []any{o.PublishableTypes()} },
		"Sample":           func(context.Context) []any { return both(o.Sample("order.paid")) },
		"Payload":          func(ctx context.Context) []any { return both(o.Payload(ctx, by, x.theirs)) },
		"Trace": func(ctx context.Context) (out []any) {
			for _, key := range []string{"7", "ORDER/7", x.theirs, x.mine, "order:7:paid", "shared-trace", "theirs-8", "ORDER/theirs-8"} {
				out = append(out, both(o.Trace(ctx, key))...)
			}
			return append(out, both(o.Trace(ctx, "reserved-of-two"))...)
		},
		"Consumers":    func(ctx context.Context) []any { return both(o.Consumers(ctx)) },
		"Dead":         func(ctx context.Context) []any { return both(o.Dead(ctx)) },
		"Jobs":         func(ctx context.Context) []any { return both(o.Jobs(ctx)) },
		"Instances":    func(ctx context.Context) []any { return both(o.Instances(ctx)) },
		"Reservations": func(ctx context.Context) []any { return both(o.Reservations(ctx)) },
		"Brokers":      func(ctx context.Context) []any { return both(o.Brokers(ctx)) },
		"Audit": func(ctx context.Context) (out []any) {
			for _, target := range []string{"", x.theirs, "ORDER/7", x.bulk} {
				out = append(out, both(o.Audit(ctx, ops.AuditQuery{Target: target}))...)
			}
			return out
		},
		"Doctor":           func(ctx context.Context) []any { return both(o.Doctor(ctx)) },
		"DoctorWithErrors": func(ctx context.Context) []any { return both(o.DoctorWithErrors(ctx)) },
		"Bulks":            func(ctx context.Context) []any { return both(o.Bulks(ctx, "", 0)) },
		"Bulk":             func(ctx context.Context) []any { return both(o.Bulk(ctx, x.bulk)) },
		"DryRun": func(ctx context.Context) []any {
			return both(o.DryRun(ctx, ops.NewBulk{Action: ops.ActionRetry, Query: ops.Query{Consumer: "Moody", TenantID: 2}}))
		},
		"StartBulk": func(ctx context.Context) []any {
			out := both(o.StartBulk(ctx, by, ops.NewBulk{ID: x.bulk, Action: ops.ActionRetry, Query: ops.Query{TenantID: 2, Consumer: "Moody"}}))
			out = append(out, both(o.StartBulk(ctx, by, ops.NewBulk{
				Action: ops.ActionDiscard, Query: ops.Query{TenantID: 2, Status: outbox.StatusDead},
			}))...)
			return append(out, both(o.StartBulk(ctx, by, ops.NewBulk{
				ID: "mine", Action: ops.ActionDiscard, Query: ops.Query{Consumer: "Moody"},
			}))...)
		},
		"CancelBulk":  func(ctx context.Context) []any { return only(o.CancelBulk(ctx, by, x.bulk)) },
		"ResumeBulk":  func(ctx context.Context) []any { return only(o.ResumeBulk(ctx, by, x.bulk)) },
		"RunBulkOnce": func(ctx context.Context) []any { return both(o.RunBulkOnce(ctx)) },
		"Run": func(ctx context.Context) []any { // in the background, for everybody
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return only(o.Run(ctx))
		},
		"CheckManual": func(ctx context.Context) []any {
			return append(both(o.CheckManual(ctx, ops.Manual{EventType: "order.paid", Payload: `{"orderId":"7"}`, TenantID: 2})),
				both(o.CheckManual(ctx, ops.Manual{EventType: "order.paid", Payload: `{"orderId":"7"}`}))...)
		},
		"Publish": func(ctx context.Context) []any {
			return append(both(o.Publish(ctx, by, ops.Manual{EventType: "order.paid", Payload: `{"orderId":"9"}`, TenantID: 2})),
				both(o.Publish(ctx, by, ops.Manual{EventType: "order.paid", Payload: `{"orderId":"9"}`}))...)
		},
		"Retry":    func(ctx context.Context) []any { return only(o.Retry(ctx, by, x.theirs)) },
		"Reopen":   func(ctx context.Context) []any { return only(o.Reopen(ctx, by, x.theirs, "Moody")) },
		"Skip":     func(ctx context.Context) []any { return only(o.Skip(ctx, by, x.theirs, "Moody")) },
		"Discard":  func(ctx context.Context) []any { return only(o.Discard(ctx, by, x.theirs)) },
		"Replay":   func(ctx context.Context) []any { return only(o.Replay(ctx, by, x.theirs, "Steady")) },
		"Backfill": func(ctx context.Context) []any { return only(o.Backfill(ctx, by, x.theirs, "Steady")) },
		"Pause":    func(ctx context.Context) []any { return only(o.Pause(ctx, by, "Steady", time.Hour)) },
		"Resume":   func(ctx context.Context) []any { return only(o.Resume(ctx, by, "Steady")) },
		"Retire":   func(ctx context.Context) []any { return only(o.Retire(ctx, by, "Steady")) },
		"RunJob": func(ctx context.Context) []any {
			_, _, err := o.RunJob(ctx, by, "j")
			return only(err)
		},
		"Refused": func(ctx context.Context) []any { return only(o.Refused(ctx, by, "discard")) },
	}
}

func said(t *testing.T, results []any) string {
	t.Helper()
	var b strings.Builder
	for _, r := range results {
		if err, ok := r.(error); ok {
			r = err.Error()
		}
		doc, err := json.Marshal(r)
		require.NoError(t, err)
		b.Write(doc)
	}
	return b.String()
}

// Who is limited to a tenant sees nothing of another one and changes nothing of theirs, whatever function they call. A
// function that is new has to be named here.
func TestNoFunctionLeadsToAnotherTenant(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		x := newTenants(t, db)
		calls, revealing := x.calls(), 0
		before := x.all()
		mine := ops.WithCaller(t.Context(), ops.Caller{Name: "mallory", Tenants: []int64{1}})
		for m := range reflect.TypeFor[*ops.Ops]().Methods() {
			call := calls[m.Name]
			require.NotNil(t, call, "say here how Ops.%s could lead to another tenant", m.Name)
			require.NotContains(t, said(t, call(mine)), foreign, m.Name)
			if m.Name != "Publish" && m.Name != "Run" && strings.Contains(said(t, x.reads(m.Name, calls)), foreign) {
				revealing++
			}
		}
		require.Equal(t, before, x.all(), "nothing of the other tenant has changed")
		require.GreaterOrEqual(t, revealing, 9, "who may see all of it does")
		require.Zero(t, f0(x.ops.Count(mine, ops.Query{TenantID: 2})).Count)
		require.EqualValues(t, 2, f0(x.ops.Count(mine, ops.Query{})).Count)
		require.EqualValues(t, 4, f0(x.ops.Count(t.Context(), ops.Query{})).Count)
		require.EqualValues(t, 1, f0(x.ops.Overview(mine)).Events[outbox.StatusDead].Count)
		require.EqualValues(t, 2, f0(x.ops.Overview(t.Context())).Events[outbox.StatusDead].Count)

		// What the caller started goes no further than the caller.
		worked, err := x.ops.RunBulkOnce(t.Context())
		for ; worked && err == nil; worked, err = x.ops.RunBulkOnce(t.Context()) {
		}
		require.NoError(t, err)
		require.Equal(t, before, x.all())
		require.Equal(t, 1, x.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE tenant_id = 1 AND status = 'SKIPPED'"))
		require.NoError(t, x.ops.Reopen(mine, op, x.mine, "Moody"))
	})
}

// reads calls a function that only reads for somebody who may see everything.
func (x tenants) reads(name string, calls map[string]func(ctx context.Context) []any) []any {
	switch name {
	case "Overview", "Events", "Event", "EventTypes", "Trace", "Consumers", "Dead", "Jobs", "Instances", "Reservations", "Audit", "Bulks",
		"Bulk", "Count":
		return calls[name](x.t.Context())
	}
	return nil
}

func f0[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
