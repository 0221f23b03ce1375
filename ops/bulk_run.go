package ops

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	bulkPoll  = 5 * time.Second // how often an instance looks for the work of one that has died
	bulkLease = 30 * time.Second
	bulkBatch = 20 // the most events in one transaction
	bulkTries = 5  // how often in a row the database may fail a batch
)

// bulkLoop works on bulk operations until ctx ends: one at a time in this process, each in one
// process at a time.
func (o *Ops) bulkLoop(ctx context.Context) {
	tick := time.NewTicker(bulkPoll)
	defer tick.Stop()
	said := false
	for ctx.Err() == nil {
		worked, err := o.RunBulkOnce(ctx)
		if err != nil && ctx.Err() == nil && !said {
			o.cfg.Logger.WarnContext(ctx, "bulk operations do not go on; they are tried again until they do", telemetry.Err, text.Error(err))
		}
		said = err != nil
		if worked && err == nil {
			continue
		}
		select {
		case <-o.wake:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// RunBulkOnce works on the oldest bulk operation that nobody works on, to its end, and tells whether
// there was one. [Ops.Run] does this by itself.
func (o *Ops) RunBulkOnce(ctx context.Context) (bool, error) {
	if err := CallerOf(ctx).whole("the work on bulk operations"); err != nil {
		return false, err
	}
	var id string
	err := o.row(ctx, []any{&id}, "SELECT operation_id FROM bc_bulk_operation WHERE state = 'RUNNING' AND (locked_until IS NULL OR locked_until < "+o.d.Now+") ORDER BY id LIMIT 1")
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ops: look for bulk operations: %w", err)
	}
	w, err := o.takeBulk(ctx, id)
	if err != nil || w == nil {
		return false, err
	}
	defer w.release(ctx)
	return true, w.run(ctx)
}

// bulkWork is a bulk operation in the hands of this process.
type bulkWork struct {
	o       *Ops
	b       Bulk
	owner   string
	version int64
	upTo    int64
	cursor  string
	over    bool
}

// takeBulk leases an operation. It answers nil if somebody else was faster.
func (o *Ops) takeBulk(ctx context.Context, id string) (*bulkWork, error) {
	w := &bulkWork{o: o, owner: o.ob.Instance()}
	err := o.row(ctx, []any{&w.version, &w.upTo, &w.cursor}, "SELECT lock_version, up_to, next_cursor FROM bc_bulk_operation WHERE operation_id = ?", id)
	if err != nil {
		return nil, fmt.Errorf("ops: bulk operation %s: %w", id, err)
	}
	res, err := o.db.ExecContext(ctx, "UPDATE bc_bulk_operation SET locked_by = ?, locked_until = "+o.d.After+", lock_version = lock_version + 1 WHERE operation_id = ? AND lock_version = ? AND state = 'RUNNING' "+
		"AND (locked_until IS NULL OR locked_until < "+o.d.Now+")", w.owner, dialect.Micro(bulkLease), id, w.version)
	if err != nil {
		return nil, fmt.Errorf("ops: bulk operation %s: %w", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return nil, err
	}
	w.version++
	if w.b, err = o.readBulk(ctx, id); err == nil && w.b.State != BulkRunning {
		return nil, w.fail(ctx, errors.New(w.b.Error))
	}
	return w, err
}

// release ends the lease, so that another instance can go on at once.
func (w *bulkWork) release(ctx context.Context) {
	if w.over {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.o.cfg.Timeout)
	defer cancel()
	_, err := w.o.db.ExecContext(ctx, "UPDATE bc_bulk_operation SET locked_by = NULL, locked_until = NULL WHERE operation_id = ? AND lock_version = ? AND locked_by = ?", w.b.ID, w.version, w.owner)
	if err != nil {
		w.o.cfg.Logger.WarnContext(ctx, "the lease of a bulk operation could not be ended; it expires", "operation", w.b.ID, telemetry.Err, text.Error(err))
	}
}

// run goes on until the operation is over, or ctx ends, or somebody has stopped it.
func (w *bulkWork) run(ctx context.Context) error {
	size := min(max(int(w.b.Rate/4), 1), bulkBatch)
	tries := 0
	for !w.over && ctx.Err() == nil {
		began := time.Now()
		n, err := w.batch(ctx, size)
		switch {
		case err == nil:
			tries = 0
		case ctx.Err() != nil:
			return nil //nolint:nilerr // another instance goes on
		case errors.Is(err, errBulkStopped):
			w.over = true
			return nil
		case tries < bulkTries && !errors.Is(err, ErrNotReplayable):
			tries++
			n = int(w.b.Rate) * tries // wait longer every time
		default:
			return errors.Join(err, w.fail(ctx, err))
		}
		w.o.access.forget()
		pause := time.Duration(float64(n)/w.b.Rate*float64(time.Second)) - time.Since(began)
		select {
		case <-time.After(max(pause, 0)):
		case <-ctx.Done():
		}
	}
	return nil
}

var errBulkStopped = errors.New("the operation was stopped, or has passed to another instance")

// batch does the next few events in one transaction, together with the place up to which it has got.
func (w *bulkWork) batch(ctx context.Context, size int) (n int, err error) {
	q := w.b.Query
	q.Cursor, q.Limit = w.cursor, size
	ctx = WithCaller(ctx, Caller{Name: "bulk", Tenants: w.b.Tenants}) // as whoever started it
	next, err := w.o.selectBulk(ctx, q)
	if err != nil {
		return 0, err
	}
	var done, passed int64
	err = w.o.db.RunInTx(ctx, w.o.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		done, passed = 0, 0
		if err := w.hold(ctx, tx); err != nil {
			return err
		}
		before, err := w.doneBefore(ctx, tx, next.hits)
		if err != nil {
			return err
		}
		for _, h := range next.hits {
			if before[h.eventID] || h.outboxID > w.upTo {
				continue
			}
			delay := w.delay(w.b.Seen + done + passed)
			switch err := w.o.ob.InterveneIn(ctx, tx, w.operation(), w.intervention(h.eventID, delay)); {
			case err == nil:
				done++
			case errors.Is(err, ErrNotFound):
				passed++
			default:
				return err
			}
		}
		return w.save(ctx, tx, next, done, passed)
	})
	if err != nil {
		return 0, err
	}
	w.cursor, w.over = next.next.String(), next.next.end
	w.b.Seen += done + passed
	return len(next.hits), nil
}

// operation is who is written down for every event.
func (w *bulkWork) operation() Operation { return Operation{Actor: w.b.Actor, Reason: w.b.Reason} }

func (w *bulkWork) intervention(eventID string, delay time.Duration) outbox.Intervention {
	iv := outbox.Intervention{Action: string(w.b.Action), EventID: eventID, Delay: delay, Note: bulkNote(w.b.ID), KeepSkipped: true}
	if w.b.Action == ActionReopen {
		iv.Action, iv.KeepSkipped = outbox.ActionRetry, false
	}
	if w.b.Consumer != "" && w.b.Action != ActionDiscard {
		iv.Consumers = []string{w.b.Consumer}
	}
	return iv
}

// delay spreads what falls due over the time that was asked for.
func (w *bulkWork) delay(i int64) time.Duration {
	return min(time.Duration(float64(w.b.Spread)*float64(i)/float64(max(w.b.Total.Count, 1))), w.b.Spread)
}

// hold locks the operation's row, and makes sure that it is still ours to do.
func (w *bulkWork) hold(ctx context.Context, tx bun.Tx) error {
	var n int64
	err := tx.QueryRowContext(ctx, "SELECT id FROM bc_bulk_operation WHERE operation_id = ? AND lock_version = ? AND locked_by = ? AND state = 'RUNNING'"+w.o.d.ForUpdate, w.b.ID, w.version, w.owner).Scan(&n)
	if errors.Is(err, sql.ErrNoRows) {
		return errBulkStopped
	}
	return err
}

// doneBefore tells which events this operation has changed already: a delivery that failed again
// comes up again, and is left to its consumer's own retries.
func (w *bulkWork) doneBefore(ctx context.Context, tx bun.Tx, hits []hit) (map[string]bool, error) {
	done := make(map[string]bool)
	if len(hits) == 0 {
		return done, nil
	}
	ids := make([]string, len(hits))
	for i, h := range hits {
		ids[i] = h.eventID
	}
	rows, err := tx.QueryContext(ctx, "SELECT target FROM bc_audit_log WHERE target IN (?) AND details LIKE ?", bun.List(ids), bulkNote(w.b.ID)+":%")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		done[id] = true
	}
	return done, rows.Err()
}

func bulkNote(id string) string { return "bulk " + id }

func (w *bulkWork) save(ctx context.Context, tx bun.Tx, next found, done, passed int64) error {
	o, set := w.o, ""
	if next.next.end {
		set = ", state = 'DONE', locked_by = NULL, locked_until = NULL, finished_at = " + o.d.Now
	} else {
		set = ", locked_until = " + o.d.After
	}
	args := []any{next.next.String(), done + passed, done, passed}
	if !next.next.end {
		args = append(args, dialect.Micro(bulkLease))
	}
	_, err := tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET next_cursor = ?, seen = seen + ?, done = done + ?, passed = passed + ?, updated_at = "+o.d.Now+set+" WHERE operation_id = ?", append(args, w.b.ID)...)
	return err
}

// fail stops the operation at an error that does not go away.
func (w *bulkWork) fail(ctx context.Context, cause error) error {
	o := w.o
	w.over = true
	_, err := o.db.ExecContext(ctx, "UPDATE bc_bulk_operation SET state = 'FAILED', error_message = ?, locked_by = NULL, locked_until = NULL, updated_at = "+o.d.Now+", finished_at = "+o.d.Now+
		" WHERE operation_id = ? AND lock_version = ?", text.Error(cause), w.b.ID, w.version)
	return err
}

// selectBulk finds the next events of an operation, in the order in which they were saved.
func (o *Ops) selectBulk(ctx context.Context, q Query) (found, error) {
	q, err := q.withDefaults()
	if err != nil {
		return found{}, err
	}
	if !q.direct() {
		return o.find(ctx, q, true)
	}
	events, err := o.named(ctx, q, listText)
	f := found{next: cursor{end: true}}
	for _, e := range events {
		f.hits = append(f.hits, hit{id: e.OutboxID, eventID: e.EventID, outboxID: e.OutboxID})
	}
	return f, err
}
