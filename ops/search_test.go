package ops_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

func itoa(n int) string { return strconv.Itoa(n) }

func orders(events []ops.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.AggregateID
	}
	return out
}

func TestEveryWayToSearch(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{}).consumers()
		for i := range 6 {
			note := []string{"", "die", "fail"}[i%3]
			f.save(outbox.With(paid{OrderID: itoa(i), Note: note}, outbox.Tenant(int64(i%2), 0),
				outbox.Meta(bus.MetaTraceID, fmt.Sprintf("trace-%d", i/2))))
		}
		f.once()
		f.save(noted{OrderID: "0"}) // NEW
		tenantID := outbox.EventID(1, "order.paid", "order:5:paid")
		for name, c := range map[string]struct {
			q    ops.Query
			want []string
		}{
			"all":               {ops.Query{}, []string{"0", "5", "4", "3", "2", "1", "0"}},
			"event id":          {ops.Query{EventID: tenantID}, []string{"5"}},
			"event id, type":    {ops.Query{EventID: tenantID, EventType: "order.noted"}, []string{}},
			"aggregate":         {ops.Query{AggregateType: "ORDER", AggregateID: "0"}, []string{"0", "0"}},
			"aggregate id":      {ops.Query{AggregateID: "0"}, []string{"0", "0"}},
			"aggregate, status": {ops.Query{AggregateID: "0", Status: outbox.StatusNew}, []string{"0"}},
			"producer's key":    {ops.Query{IdempotencyKey: "order:5:paid"}, []string{"5"}},
			"consumer's key":    {ops.Query{IdempotencyKey: "steady:3"}, []string{"3"}},
			"trace":             {ops.Query{TraceID: "trace-1"}, []string{"3", "2"}},
			"tenant":            {ops.Query{TenantID: 1}, []string{"5", "3", "1"}},
			"type":              {ops.Query{EventType: "order.noted"}, []string{"0"}},
			"dead":              {ops.Query{Status: outbox.StatusDead}, []string{"4", "1"}},
			"sent":              {ops.Query{Status: outbox.StatusSent}, []string{"3", "0"}},
			"failed, tenant":    {ops.Query{Status: outbox.StatusFailed, TenantID: 1}, []string{"5"}},
			"dead for it":       {ops.Query{Consumer: "Moody"}, []string{"4", "1"}},
			"failed for it":     {ops.Query{Consumer: "Moody", DeliveryStatus: consumelog.Failed, TenantID: 1}, []string{"5"}},
			"succeeded for it":  {ops.Query{Consumer: "Moody", DeliveryStatus: consumelog.Success}, []string{"3", "0"}},
			"dead, sent":        {ops.Query{Consumer: "Moody", Status: outbox.StatusSent}, []string{}},
			"since an hour":     {ops.Query{Since: time.Now().Add(-time.Hour), EventType: "order.paid", TenantID: 1}, []string{"5", "3", "1"}},
			"until an hour ago": {ops.Query{Until: time.Now().Add(-time.Hour)}, []string{}},
		} {
			p, err := f.ops.Events(t.Context(), c.q)
			require.NoError(t, err, name)
			require.Equal(t, c.want, orders(p.Rows), name)
			require.Empty(t, p.Next, name)
			n, err := f.ops.Count(t.Context(), c.q)
			require.NoError(t, err, name)
			require.Equal(t, ops.Count{Count: int64(len(c.want))}, n, name)
			var paged []string
			for c.q.Limit = 1; ; c.q.Cursor = p.Next {
				p, err = f.ops.Events(t.Context(), c.q)
				require.NoError(t, err, name)
				paged = append(paged, orders(p.Rows)...)
				if p.Next == "" {
					break
				}
			}
			if c.q.EventID == "" && c.q.IdempotencyKey == "" {
				require.Equal(t, c.want, append([]string{}, paged...), "%s, one by one", name)
			}
		}
	})
}

// What makes no sense is refused as that, by name, before a database has its own word about it.
func TestWhatMakesNoSenseIsInvalid(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"), ops.Config{})
	ctx := t.Context()
	for says, q := range map[string]ops.Query{
		"a limit of 501":                           {Limit: 501},
		`"no" is not a cursor`:                     {Cursor: "no"},
		"without a consumer":                       {DeliveryStatus: consumelog.Dead},
		`fingerprint "a" is not one`:               {Fingerprint: "a"},
		"before it begins":                         {Since: time.Now(), Until: time.Now().Add(-time.Hour)},
		`status "LOST": there is no such`:          {Status: "LOST"},
		`delivery status "LOST"`:                   {Consumer: "Moody", DeliveryStatus: "LOST"},
		"tenant id -1":                             {TenantID: -1},
		"event id":                                 {EventID: "a\x00b"},
		"trace id":                                 {TraceID: "\xff"},
		"consumer \" Moody\"":                      {Consumer: " Moody"},
		"aggregate id \"" + strings.Repeat("7", 5): {AggregateID: strings.Repeat("7", 256)},
	} {
		_, err := f.ops.Events(ctx, q)
		require.ErrorIs(t, err, ops.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	failed := func(_ any, err error) error { return err }
	for says, err := range map[string]error{
		"without a consumer:": failed(f.ops.Count(ctx, ops.Query{DeliveryStatus: consumelog.Dead})),
		"event id is empty":   failed(f.ops.Event(ctx, "")),
		"key is empty":        failed(f.ops.Trace(ctx, " ")),
		`"x" is not a cursor`: failed(f.ops.Audit(ctx, ops.AuditQuery{Cursor: "x"})),
		"target":              failed(f.ops.Audit(ctx, ops.AuditQuery{Target: "\x00"})),
		"a limit of -1":       failed(f.ops.Bulks(ctx, "", -1)),
		`action "explode"`:    failed(f.ops.DryRun(ctx, ops.NewBulk{Action: "explode"})),
		"reason is empty":     f.ops.Resume(ctx, ops.Operation{Actor: "anna"}, "Moody"),
		"actor is empty": failed(f.ops.StartBulk(ctx, ops.Operation{Reason: "x"}, ops.NewBulk{
			Action: ops.ActionRetry, Query: ops.Query{Status: outbox.StatusDead},
		})),
		"must not be negative":         f.ops.Pause(ctx, op, "Moody", -time.Second),
		"consumer is empty":            f.ops.Skip(ctx, op, "1", ""),
		"contains a control character": f.ops.Retry(ctx, op, "a\x00"),
		"cannot be published":          failed(f.ops.CheckManual(ctx, ops.Manual{EventType: "x", Payload: "{}"})),
		"events of type \"y\"":         failed(f.ops.Publish(ctx, op, ops.Manual{EventType: "y", Payload: "{}"})),
	} {
		require.ErrorIs(t, err, ops.ErrInvalid, says)
		require.ErrorContains(t, err, says)
	}
	require.NotErrorIs(t, failed(f.ops.Event(ctx, "nobody")), ops.ErrInvalid)
}

func TestAnEventWithAllItsDeliveriesAndAttempts(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{TraceURL: func(id string) string { return "https://traces/" + id }}).consumers()
		f.save(outbox.With(paid{
			OrderID: "7", Cents: 12345678901234567, Phone: "555", Note: "die",
		}, outbox.Meta(bus.MetaTraceID, "abc"), outbox.Meta(bus.MetaUserID, "u")))
		e := f.event("7")
		require.Equal(t, outbox.StatusNew, e.Status)
		require.Empty(t, e.Deliveries, "nobody has registered yet")
		f.once()
		e = f.event("7")
		require.Equal(t, outbox.StatusDead, e.Status)
		require.Equal(t, "https://traces/abc", e.TraceURL)
		require.Equal(t, "u", e.UserID)
		require.Equal(t, "test-1", e.Instance)
		moody, steady := delivery(e, "Moody"), delivery(e, "Steady")
		require.Equal(t, consumelog.Dead, moody.Status)
		require.Len(t, moody.History, 1)
		require.Regexp(t, "^test-1#[0-9a-f]{8}$", moody.History[0].Instance, "which run of it")
		require.Contains(t, moody.Error, "order 7 is cursed")
		require.Equal(t, consumelog.Success, steady.Status)
		require.Equal(t, "steady:7", steady.IdempotencyKey)
		require.JSONEq(t, `{"cents":12345678901234567,"phone":"(hidden)"}`, steady.Result)
		require.Contains(t, steady.Result, "12345678901234567")
		require.True(t, steady.Registered)
		_, err := f.ops.Event(t.Context(), "nobody")
		require.ErrorIs(t, err, ops.ErrNotFound)
	})
}

func TestSearchStopsAndGoesOn(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db, ops.Config{Timeout: testdb.Patience()}) // it stops after a number of rows, not of seconds
		f.save(noted{OrderID: "first"})
		testplan.Fill(t, f.db, 45_000, "old", "Steady")
		var found []string
		looks := 0
		for q := (ops.Query{EventType: "order.noted"}); ; {
			p, err := f.ops.Events(t.Context(), q)
			require.NoError(t, err)
			found = append(found, orders(p.Rows)...)
			if looks++; p.Next == "" {
				require.Zero(t, p.SearchedTo)
				break
			}
			require.NotZero(t, p.SearchedTo)
			q.Cursor = p.Next
		}
		require.Equal(t, []string{"first"}, found)
		require.Equal(t, 3, looks)
		n, err := f.ops.Count(t.Context(), ops.Query{EventType: "order.noted"})
		require.NoError(t, err)
		require.Equal(t, ops.Count{Count: 1}, n)
		n, err = f.ops.Count(t.Context(), ops.Query{})
		require.NoError(t, err)
		require.Equal(t, ops.Count{Count: ops.CountCap, More: true}, n)
	})
}
