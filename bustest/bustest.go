// Package bustest is what users of bluecone need in their own tests: the real engine, on
// the database their tests already have, driven step by step.
//
// # Contract
//
// Nothing runs in the background and nothing sleeps. [Harness.Drain] publishes until
// nothing is left to do, retries included, and then, by default, delivers everything a
// second time: a handler that works in its tx must not notice, and one registered with
// bus.OnExternal must stand it. [Harness.Break] turns faults on the consumers under test.
//
// Give each test a database (or schema) of its own, by [NewDB] or as your tests do it already: the harness publishes whatever
// is due in it. It applies the migrations and leaves everything else to the test.
package bustest

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

// Harness is an outbox and a bus on the test's database.
type Harness struct {
	// Outbox is what the code under test saves to.
	Outbox *outbox.Outbox
	// Bus is where the test registers the consumers under test, before the first Drain.
	Bus *bus.Bus

	t         testing.TB
	db        *bun.DB
	d         dialect.Dialect
	publisher *outbox.Publisher
	first     int64 // outbox ids above it belong to the test

	firstAttempt int64 // ids of attempts above it, too
	faults       inject.Faults
	once         bool
}

// Option changes how a harness works.
type Option func(*Harness)

// DeliverOnce keeps Drain from delivering everything a second time.
func DeliverOnce() Option { return func(h *Harness) { h.once = true } }

// New returns a harness on db. It applies bluecone's migrations.
func New(t testing.TB, db *bun.DB, opts ...Option) *Harness {
	t.Helper()
	h := &Harness{t: t, db: db}
	ctx := t.Context()
	h.must(migrations.Up(ctx, db), "apply the migrations")
	quiet := slog.New(slog.DiscardHandler)
	var err error
	h.d, err = dialect.Of(db)
	h.must(err, "recognise the database")
	h.Outbox, err = outbox.New(db, outbox.Config{Logger: quiet})
	h.must(err, "make the outbox")
	h.Bus = bus.New(db, bus.Config{Logger: quiet})
	h.must(db.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM bc_outbox_event").Scan(&h.first), "read the outbox")
	h.must(db.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM bc_delivery_attempt").Scan(&h.firstAttempt), "read the attempts")
	for _, o := range opts {
		o(h)
	}
	return h
}

// Report counts the deliveries of the test's events by their status.
type Report map[consumelog.Status]int

// maxRounds is after how many rounds Drain gives up: something asks to be retried for ever.
const maxRounds = 200

// Drain publishes until nothing is left to do. Waiting retries are made due at once, so a
// handler that keeps failing ends DEAD here and now; see the report. Delayed events wait: see [Harness.Advance]. Then everything is
// delivered a second time, unless the harness was made with [DeliverOnce].
func (h *Harness) Drain() Report {
	h.t.Helper()
	h.settle()
	if !h.once {
		h.again()
		h.settle()
	}
	return h.report()
}

// Deliver saves one event and delivers it, once, to its consumers.
func Deliver(h *Harness, e bus.Event) Report {
	h.t.Helper()
	err := h.db.RunInTx(h.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return h.Outbox.Save(ctx, tx, e) })
	h.must(err, "save the event")
	h.settle()
	return h.report()
}

// settle runs the publisher until a round has found nothing.
func (h *Harness) settle() {
	h.t.Helper()
	if h.publisher == nil {
		var err error
		h.publisher, err = outbox.NewPublisher(h.Outbox, h.Bus, outbox.PublisherConfig{})
		h.must(err, "make the publisher")
	}
	handler.Of(h.Bus).Inject(h.faults)
	for range maxRounds {
		h.exec("UPDATE bc_event_consume_log SET next_retry_at = "+h.d.After+" WHERE outbox_id > ? "+
			"AND status IN ('PENDING', 'FAILED', 'PROCESSING') AND next_retry_at < "+h.d.Never, -1, h.first)
		h.exec("UPDATE bc_outbox_event SET next_retry_at = "+h.d.After+" WHERE id > ? "+
			"AND (status = 'DISPATCHING' OR (status = 'SCHEDULED' AND lock_version > 0))", -1, h.first)
		r, err := h.publisher.RunOnce(h.t.Context())
		h.must(err, "publish")
		if r.Claimed == 0 && r.Retried == 0 {
			return
		}
	}
	h.t.Fatalf("bustest: not idle after %d rounds: some handler asks to be retried for ever: %v", maxRounds, h.report())
}

// again makes every delivered event NEW, as a crash before settling would have. External
// effects are delivered again, as a crash before their bookkeeping would have.
func (h *Harness) again() {
	h.t.Helper()
	for _, c := range h.Bus.Consumers() {
		for _, eventType := range c.ExternalTypes() {
			h.exec("DELETE FROM bc_event_consume_log WHERE outbox_id > ? AND consumer_name = ? AND event_type = ? AND status = 'SUCCESS'",
				h.first, c.Key(), eventType)
		}
	}
	h.exec("UPDATE bc_outbox_event SET status = 'NEW', sent_at = NULL, lock_version = lock_version + 1 WHERE id > ? AND status = 'SENT'",
		h.first)
}

func (h *Harness) report() Report {
	h.t.Helper()
	rows, err := h.db.QueryContext(h.t.Context(), "SELECT status, COUNT(*) FROM bc_event_consume_log WHERE outbox_id > ? GROUP BY status",
		h.first)
	h.must(err, "count deliveries")
	defer rows.Close()
	out := make(Report)
	for rows.Next() {
		var s consumelog.Status
		var n int
		h.must(rows.Scan(&s, &n), "count deliveries")
		out[s] = n
	}
	h.must(rows.Err(), "count deliveries")
	return out
}

func (h *Harness) exec(query string, args ...any) {
	h.t.Helper()
	_, err := h.db.ExecContext(h.t.Context(), query, args...)
	h.must(err, "prepare the next round")
}

func (h *Harness) must(err error, what string) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(fmt.Errorf("bustest: %s: %w", what, err))
	}
}
