package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Attempts is bc_delivery_attempt, the history of each delivery.
type Attempts struct {
	db *bun.DB
	d  dialect.Dialect
}

// Attempt is one run of a delivery that did not succeed. The history counts as the delivery does: an
// outcome of FAILED or DEAD, and of PROCESSING for a run that ended without an answer, is a counted
// attempt; PENDING is a run that does not count.
type Attempt struct {
	Instance string
	Duration time.Duration
}

// Verdict is how an attempt that did not succeed leaves its delivery.
type Verdict struct {
	Status Status        // Failed, Pending, Dead or Skipped
	Delay  time.Duration // until the next attempt, for Failed and Pending
	Error  string        // why, for people
	Counts bool          // whether the attempt counts as one
}

// outcome is the verdict as the history has it.
func (v Verdict) outcome() Status {
	if !v.Counts {
		return Pending
	}
	return v.Status
}

const insertAttempt = "INSERT INTO bc_delivery_attempt " +
	"(consumer_name, event_id, attempt, outcome, error_message, instance, duration_us, created_at) "

// record adds an attempt to the history of its delivery, in the transaction that stores its verdict.
func (h Attempts) record(ctx context.Context, tx bun.Tx, d Delivery, v Verdict, a Attempt) error {
	if v.Status == Skipped {
		return nil
	}
	_, err := tx.ExecContext(ctx, insertAttempt+"VALUES (?, ?, ?, ?, ?, ?, ?, "+h.d.Now+")",
		d.Consumer, d.EventID, d.Attempts, string(v.outcome()), nullText(text.Clean(v.Error, text.MaxError)), a.Instance,
		a.Duration.Microseconds())
	if err != nil {
		return fmt.Errorf("consume log: record attempt on event %s: %w", d.EventID, err)
	}
	return nil
}

// RecordUnanswered adds the counted runs whose leases have expired to the history, before an instance
// takes their deliveries: the process that made them cannot do it any more. It finds the deliveries by their primary key.
func (h Attempts) RecordUnanswered(ctx context.Context, tx bun.Tx, ds []Leased) error {
	var expired []dialect.Pair
	for _, d := range ds {
		if d.counted {
			expired = append(expired, dialect.Pair{ID: d.ID})
		}
	}
	if len(expired) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, insertAttempt+
		"SELECT e.consumer_name, e.event_id, e.attempts, 'PROCESSING', 'the attempt ended without an answer', COALESCE(e.locked_by, ''), 0, "+
		h.d.Now+" FROM "+h.d.Keyed(deliveryTable)+" WHERE "+dialect.IDs(expired))
	if err != nil {
		return fmt.Errorf("consume log: record attempts without an answer: %w", err)
	}
	for _, d := range ds {
		if d.counted {
			if err := h.trim(ctx, tx, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// keptAttempts is how many rows of a delivery's history are kept at each of its ends.
const keptAttempts = 10

// trim removes what lies between the first and the last rows of a delivery's history, by idx_event_consumer. Each row took a
// lease, and each lease a lock version, so that a delivery with few of them is not looked at.
func (h Attempts) trim(ctx context.Context, tx bun.Tx, d Leased) error {
	if d.Version <= 2*keptAttempts {
		return nil
	}
	of := " FROM bc_delivery_attempt WHERE event_id = ? AND consumer_name = ?"
	at := fmt.Sprintf(" LIMIT 1 OFFSET %d) AS kept)", keptAttempts-1) // a table of its own: MySQL does not read the one it deletes from
	_, err := tx.ExecContext(ctx, "DELETE"+of+
		" AND id > (SELECT id FROM (SELECT id"+of+" ORDER BY id"+at+
		" AND id < (SELECT id FROM (SELECT id"+of+" ORDER BY id DESC"+at,
		d.EventID, d.Consumer, d.EventID, d.Consumer, d.EventID, d.Consumer)
	if err != nil {
		return fmt.Errorf("consume log: trim the history of event %s: %w", d.EventID, err)
	}
	return nil
}

// Fail inserts the row of a first attempt that did not succeed, and the attempt. It reports false if the delivery has a row
// already, by uk_event_consumer: then another instance is on it.
func (h Attempts) Fail(ctx context.Context, d Delivery, v Verdict, a Attempt) (bool, error) {
	row := d
	if !v.Counts {
		row.Attempts = 0
	}
	err := h.db.RunInTx(ctx, h.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if err := h.record(ctx, tx, d, v, a); err != nil { // first: the pause counts from the verdict
			return err
		}
		return h.insert(ctx, tx, row, v)
	})
	switch {
	case err == nil:
		return true, nil
	case dialect.Classify(err) == dialect.Duplicate:
		return false, nil
	}
	return false, fmt.Errorf("consume log: record failure of event %s: %w", d.EventID, err)
}

// insert inserts the row of a delivery that has just run for the first time.
func (h Attempts) insert(ctx context.Context, tx bun.Tx, d Delivery, v Verdict) error {
	next, args := "NULL", append(d.values(), string(v.Status))
	if v.Status.Waiting() {
		next = h.d.After
		args = append(args, dialect.Micro(v.Delay))
	}
	_, err := tx.ExecContext(ctx,
		insertInto+", status, next_retry_at, error_message, first_run_at) VALUES "+byValue+", ?, "+next+", ?, "+h.d.Now+")",
		append(args, nullText(text.Clean(v.Error, text.MaxError)))...)
	return err
}
