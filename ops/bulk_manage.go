package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

const defaultBulkRate = 100

// normal fills in the defaults of a request, and reports all its mistakes.
func (b NewBulk) normal() (NewBulk, error) {
	var errs []error
	if b.ID == "" {
		b.ID = uuid.Must(uuid.NewV7()).String()
	}
	if b.Rate == 0 {
		b.Rate = defaultBulkRate
	}
	b.Query.Cursor, b.Query.Limit = "", 0
	if b.Consumer == "" && b.Action != ActionDiscard {
		b.Consumer = b.Query.Consumer
	}
	if b.Consumer == "" && b.Action != ActionDiscard && b.Query.Fingerprint != "" {
		b.Consumer, _, _ = parseFingerprint(b.Query.Fingerprint)
	}
	errs = append(errs, text.Key("bulk operation: id", b.ID, 64))
	if b.Rate < 0.1 || b.Rate > 10_000 || math.IsNaN(b.Rate) {
		errs = append(errs, fmt.Errorf("bulk operation: a rate of %v: it must be between 0.1 and 10000 events per second (0 means %d)", b.Rate, defaultBulkRate))
	}
	if b.Spread < 0 || b.Spread > 7*24*time.Hour {
		errs = append(errs, fmt.Errorf("bulk operation: spread over %v: it must be between 0 and 7 days", b.Spread))
	}
	switch b.Action {
	case ActionRetry, ActionDiscard, ActionSkip:
		q := b.Query
		if q.Consumer == "" && q.Fingerprint == "" && q.AggregateID == "" && q.TraceID == "" && !q.direct() && (q.Status == "" || q.Status == outbox.StatusSent) {
			errs = append(errs, fmt.Errorf("bulk operation: %s of events in any state: name a status other than SENT, a consumer, a fingerprint, an aggregate or a trace", b.Action))
		}
	case ActionReplay, ActionReopen:
	default:
		errs = append(errs, fmt.Errorf("bulk operation: there is no action %q: the actions are retry, reopen, skip, discard and replay", b.Action))
	}
	if b.Consumer == "" && (b.Action == ActionSkip || b.Action == ActionReplay || b.Action == ActionReopen) {
		errs = append(errs, fmt.Errorf("bulk operation: %s needs a consumer", b.Action))
	}
	if _, err := b.Query.withDefaults(); err != nil {
		errs = append(errs, err)
	}
	return b, asInvalid(errors.Join(errs...))
}

// DryRun counts the events that a bulk operation would be about.
func (o *Ops) DryRun(ctx context.Context, b NewBulk) (Count, error) {
	b, err := b.normal()
	if err != nil {
		return Count{}, err
	}
	return o.Count(ctx, b.Query)
}

// request is what the table keeps of an operation, as JSON.
type request struct {
	Query    Query         `json:"query"`
	Tenants  []int64       `json:"tenants,omitempty"`
	Consumer string        `json:"consumer,omitempty"`
	Rate     float64       `json:"rate"`
	Spread   time.Duration `json:"spreadNs"`
}

// StartBulk starts a bulk operation. With an id that exists it starts nothing and returns that one.
func (o *Ops) StartBulk(ctx context.Context, op Operation, b NewBulk) (Bulk, error) {
	b, err := b.normal()
	if err == nil {
		err = asInvalid(op.Validate())
	}
	if err != nil {
		return Bulk{}, err
	}
	if old, err := o.readBulk(ctx, b.ID); !errors.Is(err, ErrNotFound) {
		if err == nil && !old.is(b) {
			return Bulk{}, invalidf("ops: bulk operation %s is another one: choose a new id", text.Quote(b.ID))
		}
		return old, err
	}
	if err := o.mayReplay(ctx, b); err != nil {
		return Bulk{}, err
	}
	total, err := o.DryRun(ctx, b)
	if err != nil {
		return Bulk{}, err
	}
	doc, err := json.Marshal(request{Query: b.Query, Tenants: CallerOf(ctx).Tenants, Consumer: b.Consumer, Rate: b.Rate, Spread: b.Spread})
	if err != nil {
		return Bulk{}, err
	}
	more := 0
	if total.More {
		more = 1
	}
	err = o.audited(ctx, op, "bulk "+string(b.Action), b.ID, string(doc), func(ctx context.Context, tx bun.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO bc_bulk_operation (operation_id, action, request, actor, reason, total, total_more, up_to, created_at, updated_at) "+
			"SELECT ?, ?, ?, ?, ?, ?, ?, COALESCE((SELECT MAX(id) FROM "+eventTable+"), 0), "+o.d.Now+", "+o.d.Now,
			b.ID, string(b.Action), string(doc), op.Actor, text.Clean(op.Reason, text.MaxError), total.Count, more)
		return err
	})
	made, readErr := o.readBulk(ctx, b.ID)
	if readErr == nil { // perhaps by a twin
		select {
		case o.wake <- struct{}{}:
		default:
		}
		return made, nil
	}
	return Bulk{}, errors.Join(err, readErr)
}

// is tells whether the operation is what is asked for. Times may be told as an age, which is another time when asked again.
func (b Bulk) is(n NewBulk) bool {
	was, now := b.Query, n.Query
	if was.Since.IsZero() == now.Since.IsZero() && was.Until.IsZero() == now.Until.IsZero() {
		was.Since, was.Until, now.Since, now.Until = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	}
	return b.Action == n.Action && b.Consumer == n.Consumer && was == now
}

// isSeenBy tells whether the operation is about events of the caller only.
func (b Bulk) isSeenBy(c Caller) bool {
	if !c.limited() {
		return true
	}
	if b.Query.TenantID != 0 {
		return c.Sees(b.Query.TenantID)
	}
	return len(b.Tenants) > 0 && !slices.ContainsFunc(b.Tenants, func(t int64) bool { return !c.Sees(t) })
}

// mayReplay refuses at once what would be refused event by event.
func (o *Ops) mayReplay(ctx context.Context, b NewBulk) error {
	if b.Action != ActionReplay {
		return nil
	}
	k, err := o.readRegistry(ctx)
	if err != nil {
		return err
	}
	if r, ok := k.find(b.Consumer); !ok || !r.replayable {
		return fmt.Errorf("ops: replay %s: %w", b.Consumer, ErrNotReplayable)
	}
	return nil
}

// CancelBulk stops a bulk operation. What is done stays done.
func (o *Ops) CancelBulk(ctx context.Context, op Operation, id string) error {
	return o.turnBulk(ctx, op, "cancel bulk", id, "state = 'CANCELED', finished_at = "+o.d.Now, BulkRunning)
}

// ResumeBulk goes on with a bulk operation that was canceled or has failed, where it stopped.
func (o *Ops) ResumeBulk(ctx context.Context, op Operation, id string) error {
	err := o.turnBulk(ctx, op, "resume bulk", id, "state = 'RUNNING', finished_at = NULL, error_message = NULL", BulkCanceled, BulkFailed)
	if err == nil {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
	return err
}

func (o *Ops) turnBulk(ctx context.Context, op Operation, action, id, set string, from ...BulkState) error {
	if _, err := o.readBulk(ctx, id); CallerOf(ctx).limited() && err != nil {
		return err
	}
	return o.audited(ctx, op, action, id, "", func(ctx context.Context, tx bun.Tx) error {
		res, err := tx.ExecContext(ctx, "UPDATE bc_bulk_operation SET "+set+", locked_by = NULL, locked_until = NULL, lock_version = lock_version + 1, updated_at = "+o.d.Now+
			" WHERE operation_id = ? AND state IN (?)", id, bun.List(from))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("there is no such operation that is %v: %w", from, ErrNotFound))
		}
		return nil
	})
}

// Bulk shows one bulk operation.
func (o *Ops) Bulk(ctx context.Context, id string) (Bulk, error) { return o.readBulk(ctx, id) }

// Bulks lists bulk operations, newest first.
func (o *Ops) Bulks(ctx context.Context, cursor string, limit int) (Page[Bulk], error) {
	limit, err := pageSize(limit)
	if err != nil {
		return Page[Bulk]{}, err
	}
	where, args, err := before(cursor)
	if err != nil {
		return Page[Bulk]{}, err
	}
	rows, last, err := o.bulks(ctx, limit, where+" ORDER BY id DESC LIMIT ?", append(args, limit+1)...)
	p := Page[Bulk]{Rows: rows}
	if len(rows) > limit {
		p.Rows, p.Next = rows[:limit], strconv.FormatInt(last, 10)
	}
	p.Rows = slices.DeleteFunc(p.Rows, func(b Bulk) bool { return !b.isSeenBy(CallerOf(ctx)) })
	return p, err
}

func (o *Ops) readBulk(ctx context.Context, id string) (Bulk, error) {
	rows, _, err := o.bulks(ctx, 1, "operation_id = ?", id)
	if err == nil && (len(rows) == 0 || !rows[0].isSeenBy(CallerOf(ctx))) {
		err = fmt.Errorf("ops: bulk operation %s: %w", text.Quote(id), ErrNotFound)
	}
	if err != nil {
		return Bulk{}, err
	}
	return rows[0], nil
}

// bulks reads operations, and the number of the last that fits on a page of the limit.
func (o *Ops) bulks(ctx context.Context, limit int, where string, args ...any) (out []Bulk, last int64, err error) {
	out = []Bulk{}
	err = o.rows(ctx, func(rows *sql.Rows) error {
		var b Bulk
		var doc string
		var id, created, updated, finished int64
		err := rows.Scan(&id, &b.ID, &b.Action, &doc, &b.State, &b.Total.Count, &b.Total.More, &b.Seen, &b.Done, &b.Passed, &b.Actor, &b.Reason, &b.LockedBy, &created, &updated, &finished, &b.Error)
		if err != nil {
			return err
		}
		var r request
		if err := json.Unmarshal([]byte(doc), &r); err != nil {
			b.State, b.Error = BulkFailed, "what it was to do cannot be read" // nobody works on it, and it keeps nothing from the others
		}
		b.Reason, b.Error = shown(b.Reason, listText), shown(b.Error, listText)
		b.Query, b.Tenants, b.Consumer, b.Rate, b.Spread = r.Query, r.Tenants, r.Consumer, r.Rate, r.Spread
		b.CreatedAt, b.UpdatedAt, b.FinishedAt = instant(created), instant(updated), instant(finished)
		if out = append(out, b); len(out) <= limit {
			last = id
		}
		return nil
	}, "SELECT id, "+o.name("operation_id")+", "+o.name("action")+", "+cut(o.d.Text("request"), requestText)+", "+o.name("state")+", total, total_more, seen, done, passed, "+o.name("actor")+", "+cut("reason", listText)+", COALESCE("+o.name("locked_by")+", ''), "+
		o.d.Micros("created_at")+", "+o.d.Micros("updated_at")+", COALESCE("+o.d.Micros("finished_at")+", 0), COALESCE("+cut("error_message", listText)+", '') FROM bc_bulk_operation WHERE "+where, args...)
	if err != nil {
		return nil, 0, fmt.Errorf("ops: read bulk operations: %w", err)
	}
	return out, last, nil
}
