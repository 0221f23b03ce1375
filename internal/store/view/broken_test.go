package view_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// broken lists the events, with their consumers, that break a rule.
func (f fixture) broken(q view.Question) []string {
	f.t.Helper()
	found := []string{}
	for _, b := range must[[]view.Broken](f.t)(view.Ask(f.t.Context(), f.Reader, q, 10)) {
		require.NotEmpty(f.t, b.Says)
		found = append(found, b.EventID+" "+b.Consumer)
	}
	return found
}

// Each question finds what breaks its rule, and nothing of what keeps it.
func TestBrokenRulesAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.consumer("C", 0)
		f.event("fine", "SENT", 0)
		f.delivery("fine", "C", "SUCCESS", 0)
		f.event("early", "SENT", 0)
		f.delivery("early", "C", "FAILED", 0)
		f.event("left out", "SENT", 0)
		f.event("open", "NEW", 0)
		f.event("stuck", "DISPATCHING", 2*time.Hour)
		f.delivery("stuck", "C", "PROCESSING", 2*time.Hour)
		f.event("leased", "DISPATCHING", -time.Hour)
		f.delivery("leased", "C", "PROCESSING", -time.Hour)
		f.event("odd", "ODD", 0)
		f.delivery("odd", "C", "ODD", 0)
		f.delivery("orphan", "C", "DEAD", 0)
		f.exec("UPDATE bc_event_consume_log SET locked_by = 'me'")
		f.exec("UPDATE bc_outbox_event SET locked_by = 'me'")
		// How "left out" stands: the consumer was registered an hour ago, after which the events were saved.
		for name, of := range map[string]struct {
			view.Question

			want []string
		}{
			"sent too early":     {view.SentTooEarly(), []string{"early C"}},
			"open events":        {view.OpenEvents(), []string{"open ", "stuck ", "leased ", "odd "}},
			"open deliveries":    {view.OpenDeliveries(), []string{"early C", "stuck C", "leased C", "odd C"}},
			"left out":           {view.LeftOut(), []string{"left out C"}},
			"stuck events":       {view.StuckEvents(f.D, time.Hour), []string{"stuck "}},
			"stuck deliveries":   {view.StuckDeliveries(f.D, time.Hour), []string{"stuck C"}},
			"states of events":   {view.UnknownEventStatus(), []string{"odd "}},
			"states of the log":  {view.UnknownDeliveryStatus(), []string{"odd C"}},
			"deliveries orphans": {view.Orphans(), []string{"orphan C"}},
		} {
			require.ElementsMatch(f.t, of.want, f.broken(of.Question), name)
		}
		require.Len(f.t, must[[]view.Broken](f.t)(view.Ask(f.t.Context(), f.Reader, view.OpenEvents(), 2)), 2)
		there := must[[]string](f.t)(view.Existing(f.t.Context(), f.Reader, view.Events, []string{"fine", "orphan"}))
		require.Equal(f.t, []string{"fine"}, there)
	})
}

// A delivery that has succeeded while an earlier one of its aggregate waits is out of order, unless its consumer does not mind.
func TestDeliveriesOutOfOrderAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.event("first", "DISPATCHING", 0)
		f.event("second", "DISPATCHING", 0)
		f.delivery("first", "C", "FAILED", 0)
		f.delivery("second", "C", "SUCCESS", 0)
		f.delivery("first", "D", "SUCCESS", 0)
		f.delivery("second", "D", "FAILED", 0)
		require.Equal(f.t, []string{"second C"}, f.broken(view.OutOfOrder(nil)))
		require.Empty(f.t, f.broken(view.OutOfOrder([]string{"C"})))
	})
}

// Attempts that are not counted, or not made, or made too early are found; those that an operator's retry explains are not.
func TestUntruthfulAttemptsAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		for id, counted := range map[string]int{"fine": 2, "uncounted": 1, "unexplained": 4} {
			f.event(id, "DISPATCHING", 0)
			f.delivery(id, "C", "FAILED", 0)
			f.exec("UPDATE bc_event_consume_log SET attempts = ? WHERE event_id = ?", counted, id)
			f.attempt(id, "C", 1, "FAILED")
			f.attempt(id, "C", 2, "FAILED")
		}
		f.exec("UPDATE bc_delivery_attempt SET created_at = "+f.D.After+" WHERE attempt = 1", -dialect.Micro(time.Hour))
		f.event("none", "NEW", 0)
		f.attempt("none", "C", 1, "FAILED")
		require.Equal(f.t, []string{"uncounted C"}, f.broken(view.UncountedAttempts()))
		require.Equal(f.t, []string{"unexplained C"}, f.broken(view.UnexplainedAttempts()))
		require.Equal(f.t, []string{"none C"}, f.broken(view.AttemptsWithoutDelivery()))
		require.Empty(f.t, f.broken(view.EarlyAttempts(f.D)))
		f.exec("UPDATE bc_delivery_attempt SET created_at = (SELECT created_at FROM bc_outbox_event WHERE event_id = 'none') " +
			"WHERE event_id = 'fine'")
		require.Equal(f.t, []string{"fine C"}, f.broken(view.EarlyAttempts(f.D)))
		f.exec("INSERT INTO bc_audit_log (actor, action, target, reason, created_at) " +
			"SELECT 'ann', 'retry', 'fine', 'a test', created_at FROM bc_outbox_event WHERE event_id = 'none'")
		require.Empty(f.t, f.broken(view.EarlyAttempts(f.D)))
	})
}

// What handlers noted is compared with the log: twice, without SUCCESS, missing, and out of order.
func TestBrokenEffectsAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.exec("CREATE TABLE effects (id INTEGER PRIMARY KEY, consumer VARCHAR(64), event_id VARCHAR(64), aggregate VARCHAR(64), seq INTEGER)")
		note := func(id int, event string, seq int) {
			f.exec("INSERT INTO effects VALUES (?, 'C', ?, 'A/1', ?)", id, event, seq)
		}
		effects := view.Effects("effects")
		for _, id := range []string{"fine", "twice", "missing"} {
			f.delivery(id, "C", "SUCCESS", 0)
		}
		note(1, "fine", 1)
		note(2, "twice", 3)
		note(3, "twice", 3)
		f.delivery("failed", "C", "FAILED", 0)
		note(4, "failed", 2)
		require.Equal(f.t, []string{"twice C"}, f.broken(effects.Twice()))
		require.Equal(f.t, []string{"failed C"}, f.broken(effects.WithoutSuccess()))
		require.Equal(f.t, []string{"missing C"}, f.broken(effects.Missing(view.Deliveries)))
		require.Empty(f.t, f.broken(effects.Missing(view.DeliveriesArchive)))
		require.Equal(f.t, []string{"failed C"}, f.broken(effects.OutOfOrder(nil)))
		require.Empty(f.t, f.broken(effects.OutOfOrder([]string{"C"})))
	})
}

// Nobody has been left out of an event that was saved before the consumer took its type.
func TestEventsBeforeATypeWasTakenLeaveNobodyOut(t *testing.T) {
	t.Parallel()
	each(t, func(f fixture) {
		f.consumer("C", 24*time.Hour)
		f.event("sent", "SENT", 2*time.Hour)
		left := func() []view.Broken {
			return must[[]view.Broken](f.t)(view.Ask(f.t.Context(), f.Reader, view.LeftOut(), 10))
		}
		require.Len(f.t, left(), 1)
		f.exec("UPDATE bc_consumer_type SET registered_at = "+f.D.After, -dialect.Micro(time.Hour))
		require.Empty(f.t, left())
	})
}
