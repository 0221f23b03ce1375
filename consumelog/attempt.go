package consumelog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Attempt is one run of a delivery that did not succeed. The history counts as the delivery does: an
// outcome of FAILED or DEAD, and of PROCESSING for a run that ended without an answer, is a counted
// attempt; PENDING is a run that does not count.
type Attempt struct {
	Instance string
	Duration time.Duration
}

// inHistory is a delivery's verdict as the history has it.
func (v Verdict) inHistory() Status {
	if !v.Counts {
		return Pending
	}
	return v.Status
}

// record adds an attempt to the history of its delivery, in the transaction that stores its verdict.
func (l *Log) record(ctx context.Context, tx bun.Tx, d Delivery, v Verdict, a Attempt) error {
	if v.Status == Skipped {
		return nil
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, "+l.d.Now+")",
		d.Consumer, d.EventID, d.Attempts, string(v.inHistory()), nullText(text.Clean(v.Error, text.MaxError)), a.Instance, a.Duration.Microseconds())
	if err != nil {
		return fmt.Errorf("consume log: record attempt on event %s: %w", d.EventID, err)
	}
	return nil
}

// keptAttempts is how many rows of a delivery's history are kept at each of its ends.
const keptAttempts = 10

// trimHistory removes what lies between the first and the last rows of a delivery's history. Each row took a
// lease, and each lease a lock version, so that a delivery with few of them is not looked at.
func (l *Log) trimHistory(ctx context.Context, tx bun.Tx, d Leased) error {
	if d.Version <= 2*keptAttempts {
		return nil
	}
	of := " FROM bc_delivery_attempt WHERE event_id = ? AND consumer_name = ?"
	at := fmt.Sprintf(" LIMIT 1 OFFSET %d) AS kept)", keptAttempts-1) // a table of its own: MySQL does not read the one it deletes from
	_, err := tx.ExecContext(ctx, "DELETE"+of+" AND id > (SELECT id FROM (SELECT id"+of+" ORDER BY id"+at+" AND id < (SELECT id FROM (SELECT id"+of+" ORDER BY id DESC"+at,
		d.EventID, d.Consumer, d.EventID, d.Consumer, d.EventID, d.Consumer)
	if err != nil {
		return fmt.Errorf("consume log: trim the history of event %s: %w", d.EventID, err)
	}
	return nil
}

// recordUnanswered adds the counted runs whose leases have expired to the history, before somebody else
// takes their deliveries: who made them cannot do it any more.
func (l *Log) recordUnanswered(ctx context.Context, tx bun.Tx, ds []Leased) error {
	var expired []dialect.Pair
	for _, d := range ds {
		if d.counted {
			expired = append(expired, dialect.Pair{ID: d.ID})
		}
	}
	if len(expired) == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, error_message, instance, duration_us, created_at) "+
		"SELECT e.consumer_name, e.event_id, e.attempts, 'PROCESSING', 'the attempt ended without an answer', COALESCE(e.locked_by, ''), 0, "+l.d.Now+" FROM "+l.d.Keyed(table)+" WHERE "+dialect.IDs(expired))
	if err != nil {
		return fmt.Errorf("consume log: record attempts without an answer: %w", err)
	}
	return nil
}

// Fail inserts the row of a first attempt that did not succeed, and the attempt. It reports false
// if the delivery has a row already: then somebody else is on it.
func (l *Log) Fail(ctx context.Context, d Delivery, v Verdict, a Attempt) (bool, error) {
	row := d
	if !v.Counts {
		row.Attempts = 0
	}
	query, args := l.insert(entry{Delivery: row, status: v.Status, retry: v.retry(), err: text.Clean(v.Error, text.MaxError)})
	err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if err := l.record(ctx, tx, d, v, a); err != nil { // first: the pause counts from the verdict
			return err
		}
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	})
	switch {
	case err == nil:
		return true, nil
	case dialect.Classify(err) == dialect.Duplicate:
		return false, nil
	}
	return false, fmt.Errorf("consume log: record failure of event %s: %w", d.EventID, err)
}

// FailLeased ends a lease with a verdict, and records the attempt.
func (l *Log) FailLeased(ctx context.Context, owner string, d Leased, v Verdict, a Attempt) error {
	attempts, next, args := "attempts = attempts - "+whetherCounted, "next_retry_at = NULL", []any{string(v.Status), nullText(text.Clean(v.Error, text.MaxError))}
	if v.Counts {
		attempts = "attempts = attempts + 1 - " + whetherCounted
	}
	if v.Status.Waiting() {
		next = "next_retry_at = " + l.d.After
		args = append(args, dialect.Micro(v.Delay))
	}
	err := l.db.RunInTx(ctx, l.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if err := l.record(ctx, tx, d.Delivery, v, a); err != nil {
			return err
		}
		if err := l.trimHistory(ctx, tx, d); err != nil {
			return err
		}
		return l.end(ctx, tx, owner, d, "status = ?, error_message = ?, first_run_at = COALESCE(first_run_at, "+l.d.Now+"), "+attempts+", started = 0, "+next, args...)
	})
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("consume log: record failure of event %s: %w", d.EventID, err)
	}
	return err
}
