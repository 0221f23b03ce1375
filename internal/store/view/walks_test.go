package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// find walks all walks of a search from end to end, so many hits and rows at a time, and lists the events that it finds.
func (f fixture) find(s view.Search, limit, look int, ascending bool) (found []string) {
	f.t.Helper()
	for _, w := range view.Walks(f.D, s, look) {
		for at := (view.Place{}); !at.IsEnd; {
			hits, next, err := w.Hits(f.t.Context(), f.Reader, at, limit, ascending, nil)
			require.NoError(f.t, err)
			require.LessOrEqual(f.t, len(hits), limit)
			require.NotEqual(f.t, at, next, "it goes on")
			for _, h := range hits {
				found = append(found, h.EventID)
			}
			at = next
		}
	}
	return found
}

// count counts in the same way.
func (f fixture) count(s view.Search, look int) (n int64) {
	f.t.Helper()
	for _, w := range view.Walks(f.D, s, look) {
		for at := (view.Place{}); !at.IsEnd; {
			some, next, err := w.Count(f.t.Context(), f.Reader, at, 100)
			require.NoError(f.t, err)
			n, at = n+some, next
		}
	}
	return n
}

// searchable adds events and deliveries of which each search finds some.
func (f fixture) searchable() {
	f.t.Helper()
	for i, id := range []string{"a", "b", "c", "d", "e"} {
		f.event(id, []string{"NEW", "DEAD", "SENT", "DEAD", "DEAD"}[i], time.Duration(5-i)*time.Hour)
	}
	f.exec("UPDATE bc_outbox_event SET tenant_id = 7, trace_id = 'trace' WHERE event_id IN ('c', 'd')")
	f.exec("UPDATE bc_outbox_event SET event_type = 'c.d', aggregate_type = 'B', aggregate_id = '2' WHERE event_id = 'b'")
	f.exec("UPDATE bc_outbox_event SET next_retry_at = NULL WHERE event_id = 'e'")
}

// A search for events finds what fits, whichever index it walks along, and however little one statement looks at.
func TestEventsAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.searchable()
		old := time.Now().Add(-150 * time.Minute)
		for name, of := range map[string]struct {
			view.Search

			want []string
		}{
			"all":             {view.Search{}, []string{"e", "d", "c", "b", "a"}},
			"trace":           {view.Search{TraceID: "trace"}, []string{"d", "c"}},
			"aggregate":       {view.Search{AggregateTypes: []string{"A", "B"}, AggregateID: "2"}, []string{"b"}},
			"aggregate type":  {view.Search{AggregateType: "B"}, []string{"b"}},
			"status":          {view.Search{Status: "DEAD"}, []string{"d", "b", "e"}}, // one without a time comes last
			"SENT":            {view.Search{Status: "SENT"}, []string{"c"}},
			"type":            {view.Search{EventType: "c.d"}, []string{"b"}},
			"tenant":          {view.Search{TenantID: 7}, []string{"d", "c"}},
			"tenants":         {view.Search{Status: "DEAD", Tenants: []int64{0}}, []string{"b", "e"}},
			"since":           {view.Search{Since: old}, []string{"e", "d"}},
			"until":           {view.Search{Until: old, Status: "DEAD"}, []string{"b"}},
			"trace and state": {view.Search{TraceID: "trace", Status: "DEAD"}, []string{"d"}},
		} {
			for _, look := range []int{1, 2, 100} {
				require.Equal(f.t, of.want, f.find(of.Search, 10, look, false), "%s, %d rows at a time", name, look)
				require.EqualValues(f.t, len(of.want), f.count(of.Search, look), "%s, %d rows at a time", name, look)
			}
			require.Equal(f.t, of.want, f.find(of.Search, 1, 100, false), name)
		}
		require.Equal(f.t, []string{"a", "b", "c", "d", "e"}, f.find(view.Search{}, 2, 100, true))
		require.Equal(f.t, []string{"b", "d", "e"}, f.find(view.Search{Status: "DEAD"}, 1, 100, true))
		bounds := view.Search{FromID: 2, ToID: 4}
		require.Equal(f.t, []string{"c", "b"}, f.find(bounds, 10, 100, false))
		f.exec("INSERT INTO bc_outbox_event_archive (" + archived + ") SELECT " + archived + " FROM bc_outbox_event WHERE event_id = 'c'")
		require.Equal(f.t, []string{"d", "c", "c"}, f.find(view.Search{TraceID: "trace"}, 10, 100, false), "the archive is searched too")
	})
}

// archived are the columns that the archive shares with the table of events.
const archived = "id, tenant_id, store_id, aggregate_type, aggregate_id, event_type, event_id, event_payload, event_metadata, " +
	"schema_version, status, retry_count, max_retry_count, next_retry_at, locked_by, lock_version, last_error, created_at, updated_at, " +
	"sent_at, trace_id, event_key"

// A search for deliveries goes along those of one consumer, and asks their events where it has to.
func TestDeliveriesAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.searchable()
		f.delivery("a", "C", "FAILED", 3*time.Hour)
		f.delivery("b", "C", "DEAD", 2*time.Hour)
		f.delivery("c", "C", "SUCCESS", time.Hour)
		f.delivery("d", "C", "FAILED", time.Hour)
		f.delivery("e", "D", "FAILED", time.Hour)
		f.exec("UPDATE bc_event_consume_log SET tenant_id = 7 WHERE event_id IN ('c', 'd')")
		failed := view.Search{Consumer: "C", States: []string{"FAILED"}}
		with := func(change func(s *view.Search)) view.Search {
			s := failed
			change(&s)
			return s
		}
		for name, of := range map[string]struct {
			view.Search

			want []string
		}{
			"state":     {failed, []string{"d", "a"}},
			"states":    {with(func(s *view.Search) { s.States = []string{"DEAD", "SUCCESS"} }), []string{"b", "c"}},
			"tenant":    {with(func(s *view.Search) { s.TenantID = 7 }), []string{"d"}},
			"tenants":   {with(func(s *view.Search) { s.Tenants = []int64{0} }), []string{"a"}},
			"type":      {with(func(s *view.Search) { s.EventType = "c.d" }), nil},
			"aggregate": {with(func(s *view.Search) { s.AggregateType, s.AggregateID = "A", "1" }), []string{"d", "a"}},
			"of events": {with(func(s *view.Search) { s.Status, s.TraceID = "DEAD", "trace" }), []string{"d"}},
			"since":     {with(func(s *view.Search) { s.Since = time.Now().Add(-3 * time.Hour) }), []string{"d"}},
			"until":     {with(func(s *view.Search) { s.Until = time.Now().Add(-3 * time.Hour) }), []string{"a"}},
			"errors":    {with(func(s *view.Search) { s.Errors = 4 }), []string{"d", "a"}},
		} {
			for _, look := range []int{1, 100} {
				require.Equal(f.t, of.want, f.find(of.Search, 10, look, false), "%s, %d rows at a time", name, look)
			}
		}
		w := view.Walks(f.D, with(func(s *view.Search) { s.Errors = 4 }), 100)[0]
		require.True(f.t, w.ReadsErrors())
		hits, _, err := w.Hits(f.t.Context(), f.Reader, view.Place{}, 10, false, func(h view.Hit) bool { return h.EventID == "a" })
		require.NoError(f.t, err)
		require.Len(f.t, hits, 1)
		require.Equal(f.t, []any{view.Deliveries, "it br", "a.b", int64(1)},
			[]any{hits[0].Table, hits[0].Error, hits[0].EventType, hits[0].OutboxID})
		require.False(f.t, view.Walks(f.D, failed, 100)[0].ReadsErrors())
	})
}
