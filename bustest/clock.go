package bustest

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Advance lets d pass for the test's events and deliveries, without waiting: what was to happen within d is due, for the next
// [Harness.Drain]. So a delayed event (outbox.DeliverAt) is delivered, a delivery reaches its MaxAge, an event is old enough for
// retention, and the key of one that retention has removed for being forgotten (outbox.RetentionConfig.KeepKeys).
//
// The clocks of the process and of the database stay as they are. The times in bluecone's tables move into the past instead, all
// by d: those of events, deliveries and their attempts, live and archived, and of every removed key in the database. What the test
// reads afterwards has moved too: a [Saved]'s CreatedAt and DeliverAt are d earlier. Registrations, jobs, alerts and the audit log
// stay, and so do the tables of the application.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d <= 0 {
		h.t.Fatalf("bustest: Advance(%v): time passes forwards only, such as h.Advance(time.Hour)", d)
	}
	for _, archive := range []string{"", "_archive"} {
		for _, column := range []string{"created_at", "next_retry_at", "sent_at"} {
			h.shift("bc_outbox_event"+archive, "id", "id > ?", h.first, column, d)
		}
		for _, column := range []string{"created_at", "next_retry_at", "consumed_at", "first_run_at"} {
			h.shift("bc_event_consume_log"+archive, "id", "outbox_id > ?", h.first, column, d)
		}
	}
	h.shift("bc_outbox_event_archive", "id", "id > ?", h.first, "archived_at", d)
	h.shift("bc_event_consume_log_archive", "id", "outbox_id > ?", h.first, "archived_at", d)
	h.shift("bc_delivery_attempt", "id", "id > ?", h.firstAttempt, "created_at", d)
	h.shift("bc_event_key", "event_id", "event_id > ?", "", "removed_at", d)
}

// shift moves the times in a column of the test's rows into the past: of those that own finds above first. key tells rows apart.
func (h *Harness) shift(table, key, own string, first any, column string, by time.Duration) {
	h.t.Helper()
	rows, err := h.db.QueryContext(h.t.Context(),
		"SELECT "+key+", "+h.d.Micros(column)+" FROM "+table+" WHERE "+own+" AND "+column+" < "+h.d.Never, first)
	h.must(err, "let time pass")
	defer rows.Close()
	times := make(map[string]int64)
	for rows.Next() {
		var id string
		var micros int64
		h.must(rows.Scan(&id, &micros), "let time pass")
		times[id] = micros
	}
	h.must(rows.Err(), "let time pass")
	h.must(rows.Close(), "let time pass")
	for id, micros := range times {
		h.exec("UPDATE "+table+" SET "+column+" = "+h.d.At+" WHERE "+key+" = ?", micros-dialect.Micro(by), id)
	}
}
