package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/paging"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Aggregate is the entity that a lock belongs to: that of the events which settle the lock.
type Aggregate struct {
	TenantID int64 // 0 for none
	Type     string
	ID       string
}

// Lock is one business lock that has outlived its time to live.
type Lock struct {
	ID            string        // the task's own key of it
	TenantID      int64         // of the entity it belongs to, 0 for none
	AggregateType string        // to which entity it belongs, such as ORDER
	AggregateID   string        // such as 123
	Age           time.Duration // by the database's clock
}

// Aggregate is the entity that the lock belongs to.
func (l Lock) Aggregate() Aggregate { return Aggregate{l.TenantID, l.AggregateType, l.AggregateID} }

// Query asks a task for the next page of its expired locks.
type Query struct {
	OlderThan time.Duration // only locks at least this old, by the database's clock
	After     string        // only locks whose ID follows in the database's order; empty for the first page
	Limit     int           // at most so many, in that order
}

// Page is all that a SELECT needs to ask for the page, from a condition on, by the database's clock and in its order of keys. Give
// it bun as the last argument:
//
//	db.QueryContext(ctx, "SELECT s.id, s.order_id, ? FROM seats s WHERE s.status = 'HELD' AND ?",
//		reaper.Age("s.held_at"), q.Page("s.held_at", "s.id"))
//
// Since is the column with the time of the lock, in UTC, and id the column with the lock's ID, of any type that the
// database can read from the text in Lock.ID, with the name or alias of its table: PostgreSQL would sort "SELECT
// id::text" by texts. Both are SQL: never take them from input.
func (q Query) Page(since, id string) schema.QueryAppender {
	return paging.Page{Since: since, Key: id, Older: q.OlderThan, After: q.After, Limit: q.Limit}
}

// Age is a column of a SELECT, as an argument of bun's: the age of a lock by the database's clock, in microseconds. Since is
// the column with the time of the lock, in UTC. It is SQL: never take it from input.
func Age(since string) schema.QueryAppender { return paging.Age{Since: since} }

// Task names one kind of lock.
type Task struct {
	// Name of the task in logs and metrics, such as "wallet.freeze".
	Name string
	// Owner speaks for the aggregates that the locks belong to. Tasks with the same Owner release the locks
	// of an aggregate together.
	Owner *Owner
	// Consumer is the durable key of the consumer that makes and settles the locks. Its unfinished deliveries
	// hold them, those of others do not.
	Consumer string
	// TTL is the time to live of its locks. Default: Config.LockTimeout.
	TTL time.Duration
	// Find returns a page of expired locks, by an index, in the order of their IDs: see [Query.Page].
	Find func(ctx context.Context, db bun.IDB, q Query) ([]Lock, error)
	// Of returns the locks of one aggregate, however old they are. It is needed if several tasks have one Owner.
	Of func(ctx context.Context, idb bun.IDB, a Aggregate) ([]Lock, error)
	// Release gives one lock back by a guarded update, and reports whether it changed
	// exactly one row. It may save an event in tx.
	Release func(ctx context.Context, tx bun.Tx, l Lock) (bool, error)
	// ReleaseDead also releases locks that only DEAD deliveries hold, after
	// Config.DeadTimeout. Default: false, they are only reported.
	ReleaseDead bool
}

func (t Task) validate() error {
	err := text.EventType("reaper.Task.Name", t.Name)
	if t.TTL < 0 {
		err = errors.Join(err, fmt.Errorf("reaper.Task %s: TTL is %v: it must not be negative", t.Name, t.TTL))
	}
	if t.Find == nil || t.Release == nil {
		err = errors.Join(err, fmt.Errorf("reaper.Task %s: Find and Release must not be nil", t.Name))
	}
	if t.Consumer == "" {
		err = errors.Join(err, fmt.Errorf("reaper.Task %s: Consumer is empty: name the consumer that makes and settles the locks", t.Name))
	}
	if t.Owner == nil || t.Owner.Guard == nil {
		err = errors.Join(err, fmt.Errorf("reaper.Task %s: Owner.Guard is missing: "+
			"it must lock the row of the aggregate and say whether its locks may go", t.Name))
	}
	return err
}

// Report is what one run did.
type Report struct {
	Expired  int64 `json:"expired"`  // locks found older than their time to live
	Released int64 `json:"released"` // given back, those included that went with an expired one of the same owner
	Held     int64 `json:"held"`     // left alone: an event of their aggregate is unfinished for their consumer
	Dead     int64 `json:"dead"`     // left alone: a DEAD delivery holds them
	Kept     int64 `json:"kept"`     // left alone: their owner's guard says so
	Gone     int64 `json:"gone"`     // settled by somebody else meanwhile
	Failed   int64 `json:"failed"`   // could not be released; see the error
}

func (r Report) counts() schedule.Counts {
	return schedule.Counts{
		"expired": r.Expired, "released": r.Released, "held": r.Held, "dead": r.Dead, "kept": r.Kept, "gone": r.Gone, "failed": r.Failed,
	}
}

func reportOf(c schedule.Counts) Report {
	return Report{
		Expired: c["expired"], Released: c["released"], Held: c["held"], Dead: c["dead"],
		Kept: c["kept"], Gone: c["gone"], Failed: c["failed"],
	}
}

// reap runs every task. A task that fails does not keep the others from running.
func (r *Reaper) reap(ctx context.Context) (Report, error) {
	var report Report
	var errs []error
	for _, t := range r.tasks {
		if err := r.contain(ctx, t, func() error { return r.reapTask(ctx, t, &report) }); err != nil {
			errs = append(errs, fmt.Errorf("reaper: %s: %w", t.Name, err))
		}
	}
	return report, errors.Join(errs...)
}

// reapTask pages through the expired locks by their IDs, so that those it must leave alone
// never hide those behind them.
func (r *Reaper) reapTask(ctx context.Context, t Task, report *Report) error {
	q, cursor, errs := Query{OlderThan: t.TTL, Limit: r.cfg.Batch}, paging.Cursor{}, []error(nil)
	if q.OlderThan == 0 {
		q.OlderThan = r.cfg.LockTimeout
	}
	for ctx.Err() == nil {
		locks, err := t.Find(ctx, r.db, q)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("find: %w", err))...)
		}
		for _, l := range locks {
			report.Expired++
			if err := r.contain(ctx, t, func() error { return r.reapLock(ctx, t, l, report) }, "lock", l.ID); err != nil {
				report.Failed++
				errs = append(errs, fmt.Errorf("lock %s of %s %s: %w", l.ID, l.AggregateType, l.AggregateID, err))
			}
		}
		if len(locks) < q.Limit {
			break
		}
		last := locks[len(locks)-1].ID
		if err := cursor.Next(q.After, last); err != nil {
			return errors.Join(append(errs, err)...)
		}
		q.After = last
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// contain makes a panic of what a task brings an error of that task, or of one lock of it. The log says where it was.
func (r *Reaper) contain(ctx context.Context, t Task, call func() error, attrs ...any) error {
	err := contain.Call("it", call)
	contain.Log(ctx, r.cfg.Logger, err, append(attrs, "task", t.Name)...)
	return err
}
