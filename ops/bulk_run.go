package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
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
func (s *bulks) loop(ctx context.Context) {
	tick := time.NewTicker(bulkPoll)
	defer tick.Stop()
	said := false
	for ctx.Err() == nil {
		worked, err := s.once(ctx)
		if err != nil && ctx.Err() == nil && !said {
			s.acts.log.WarnContext(ctx, "bulk operations do not go on; they are tried again until they do", telemetry.Err, text.Error(err))
		}
		said = err != nil
		if worked && err == nil {
			continue
		}
		select {
		case <-s.wake:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// RunBulkOnce works on the oldest bulk operation that nobody works on, to its end, and tells whether
// there was one. [Ops.Run] does this by itself.
func (o *Ops) RunBulkOnce(ctx context.Context) (bool, error) { return o.bulks.once(ctx) }

func (s *bulks) once(ctx context.Context) (bool, error) {
	if err := CallerOf(ctx).whole("the work on bulk operations"); err != nil {
		return false, err
	}
	var errs []error
	for last := int64(0); ; {
		id, operation, err := view.FreeBulk(ctx, s.search.access.sql, last)
		if err != nil || id == 0 {
			return false, errors.Join(append(errs, lookError(err))...)
		}
		last = id
		w, err := s.take(ctx, operation)
		if err != nil { // its row may be malformed: the next one goes on
			errs = append(errs, err)
			continue
		}
		if w == nil {
			continue
		}
		defer w.release(ctx)
		return true, errors.Join(append(errs, w.run(ctx))...)
	}
}

// lookError says what failed, if anything did.
func lookError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ops: look for bulk operations: %w", err)
}

// bulkWork is a bulk operation on which this process works.
type bulkWork struct {
	s      *bulks
	b      Bulk
	lease  store.BulkLease
	upTo   int64
	cursor string
	over   bool
	isHeld bool // by an event in flight, which the batch has to wait for
}

// take leases an operation. It answers nil if somebody else was faster.
func (s *bulks) take(ctx context.Context, id string) (*bulkWork, error) {
	place, err := view.BulkPlaceOf(ctx, s.search.access.sql, id)
	if err != nil {
		return nil, fmt.Errorf("ops: bulk operation %s: %w", id, err)
	}
	w := &bulkWork{
		s: s, lease: store.BulkLease{ID: id, Owner: s.ob.Instance(), Version: place.Version}, upTo: place.UpTo,
		cursor: place.Cursor,
	}
	done, err := s.rows.Lease(ctx, s.acts.db, w.lease, bulkLease)
	if err != nil {
		return nil, fmt.Errorf("ops: bulk operation %s: %w", id, err)
	}
	if !done {
		return nil, nil //nolint:nilnil // nothing to do is no error
	}
	w.lease.Version++
	if w.b, err = s.read(ctx, id); err == nil && w.b.State != BulkRunning {
		return nil, w.fail(ctx, errors.New(w.b.Error))
	}
	return w, err
}

// release ends the lease, so that another instance can go on at once.
func (w *bulkWork) release(ctx context.Context) {
	if w.over {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.s.timeout)
	defer cancel()
	if err := w.s.rows.Release(ctx, w.s.acts.db, w.lease); err != nil {
		w.s.acts.log.WarnContext(ctx, "the lease of a bulk operation could not be ended; it expires", "operation", w.b.ID, telemetry.Err,
			text.Error(err))
	}
}

// run goes on until the operation is over, or ctx ends, or somebody has stopped it.
func (w *bulkWork) run(ctx context.Context) error {
	size := min(max(int(w.b.Rate/4), 1), bulkBatch)
	tries := 0
	for !w.over && ctx.Err() == nil {
		began := time.Now()
		n, err := w.batch(ctx, size)
		var pause time.Duration
		switch {
		case err == nil:
			if tries, pause = 0, time.Duration(float64(n)/w.b.Rate*float64(time.Second))-time.Since(began); w.isHeld {
				pause = time.Second
			}
		case ctx.Err() != nil:
			return nil //nolint:nilerr // another instance goes on
		case errors.Is(err, errBulkStopped):
			w.over = true
			return nil
		case tries < bulkTries && !errors.Is(err, ErrNotReplayable):
			tries++
			pause = time.Duration(tries) * time.Second // wait longer every time
		default:
			return errors.Join(err, w.fail(ctx, err))
		}
		w.s.acts.access.forget()
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
	next, err := w.s.search.ofBulk(ctx, q)
	if err != nil {
		return 0, err
	}

	var p store.BulkProgress
	err = w.s.acts.db.RunInTx(ctx, w.s.acts.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) (err error) {
		if holds, err := w.s.rows.Lock(ctx, tx, w.lease); err != nil || !holds {
			return cmp.Or(err, errBulkStopped)
		}
		if p, err = w.change(ctx, tx, next.hits); err != nil {
			return err
		}
		if p.Cursor, p.IsOver = next.next.String(), next.next.place.IsEnd; w.isHeld {
			p.Cursor, p.IsOver = w.cursor, false
		}
		return w.s.rows.Save(ctx, tx, w.b.ID, p, bulkLease)
	})
	if err != nil {
		return 0, err
	}
	w.cursor, w.over = p.Cursor, p.IsOver
	w.b.Seen += p.Done + p.Passed
	return len(next.hits), nil
}

// change changes the events of hits, but for those that this operation has changed already: a delivery that failed again comes
// up again, and is left to its consumer's own retries.
func (w *bulkWork) change(ctx context.Context, tx bun.Tx, hits []view.Hit) (p store.BulkProgress, err error) {
	ids := make([]string, len(hits))
	for i, h := range hits {
		ids[i] = h.EventID
	}
	before, err := w.s.rows.Noted(ctx, tx, ids, bulkNote(w.b.ID))
	if err != nil {
		return p, err
	}
	w.isHeld = false
	for _, h := range hits {
		if !before[h.EventID] && h.OutboxID <= w.upTo {
			err := w.changeOne(ctx, tx, h.EventID, &p)
			if w.isHeld = w.b.Action == ActionBackfill && errors.Is(err, ErrInFlight); w.isHeld {
				p.Passed = 0 // they are looked at again
				return p, nil
			}
			if err != nil && !errors.Is(err, ErrNotFound) {
				return p, err
			}
		}
		p.Reached = max(p.Reached, h.OutboxID)
	}
	return p, nil
}

// changeOne changes an event, and counts it: as passed if it is in no state that allows the action.
func (w *bulkWork) changeOne(ctx context.Context, tx bun.Tx, eventID string, p *store.BulkProgress) error {
	delay := w.delay(w.b.Seen + p.Done + p.Passed)
	err := w.s.ob.InterveneIn(ctx, tx, w.operation(), w.intervention(eventID, delay))
	switch {
	case err == nil:
		p.Done++
	case errors.Is(err, ErrNotFound):
		p.Passed++
	}
	return err
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

func bulkNote(id string) string { return "bulk " + id }

// fail stops the operation at an error that does not go away.
func (w *bulkWork) fail(ctx context.Context, cause error) error {
	w.over = true
	return w.s.rows.Fail(ctx, w.s.acts.db, w.lease, text.Error(cause))
}

// ofBulk finds the next events of an operation, in the order in which they were saved.
func (s *searcher) ofBulk(ctx context.Context, q Query) (found, error) {
	q, err := q.withDefaults()
	if err != nil {
		return found{}, err
	}
	if !q.direct() {
		return s.find(ctx, q, true)
	}
	events, err := s.named(ctx, q, listText)
	f := found{next: end()}
	for _, e := range events {
		f.hits = append(f.hits, view.Hit{ID: e.OutboxID, EventID: e.EventID, OutboxID: e.OutboxID})
	}
	return f, err
}
