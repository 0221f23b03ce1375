package bustest

import (
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Advance lets d pass for the test's events and deliveries, without waiting: what was to happen within d is due, for the next
// [Harness.Drain]. So a delayed event (outbox.DeliverAt) is delivered, a delivery reaches its MaxAge, and an event is old enough for
// retention. The clocks of the process and of the database stay as they are: the times in bluecone's tables move into the past.
func (h *Harness) Advance(d time.Duration) {
	h.t.Helper()
	if d <= 0 {
		h.t.Fatalf("bustest: Advance(%v): time passes forwards only, such as h.Advance(time.Hour)", d)
	}
	for _, column := range []string{"created_at", "next_retry_at", "sent_at"} {
		h.shift("bc_outbox_event", "id > ?", column, d)
	}
	for _, column := range []string{"created_at", "next_retry_at", "consumed_at", "first_run_at"} {
		h.shift("bc_event_consume_log", "outbox_id > ?", column, d)
	}
}

// shift moves the times in a column of the test's rows into the past.
func (h *Harness) shift(table, own, column string, by time.Duration) {
	h.t.Helper()
	rows, err := h.db.QueryContext(h.t.Context(),
		"SELECT id, "+h.d.Micros(column)+" FROM "+table+" WHERE "+own+" AND "+column+" < "+h.d.Never, h.first)
	h.must(err, "let time pass")
	defer rows.Close()
	times := make(map[int64]int64)
	for rows.Next() {
		var id, micros int64
		h.must(rows.Scan(&id, &micros), "let time pass")
		times[id] = micros
	}
	h.must(rows.Err(), "let time pass")
	h.must(rows.Close(), "let time pass")
	for id, micros := range times {
		h.exec("UPDATE "+table+" SET "+column+" = "+h.d.At+" WHERE id = ?", micros-dialect.Micro(by), id)
	}
}
