package reaper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/audit"
	"github.com/bluecone-go/bluecone/internal/schedule"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Lock is one business lock that has outlived its time to live.
type Lock struct {
	ID            string        // the task's own key of it
	AggregateType string        // to which entity it belongs, such as ORDER
	AggregateID   string        // such as 123
	Age           time.Duration // by the database's clock
}

// Query asks a task for the next page of its expired locks.
type Query struct {
	OlderThan time.Duration // only locks at least this old, by the database's clock
	After     string        // only locks whose ID is greater; empty for the first page
	Limit     int           // at most so many, in the order of their IDs
}

// Task names one kind of lock.
type Task struct {
	// Name of the task in logs and metrics, such as "wallet.freeze".
	Name string
	// TTL is the time to live of its locks. Default: Config.LockTimeout.
	TTL time.Duration
	// Find returns a page of expired locks, by an index, in the order of their IDs.
	Find func(ctx context.Context, db bun.IDB, q Query) ([]Lock, error)
	// Release gives one lock back by a guarded update, and reports whether it changed
	// exactly one row. It may save an event in tx.
	Release func(ctx context.Context, tx bun.Tx, l Lock) (bool, error)
	// ReleaseDead also releases locks that only DEAD events hold, after
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
	return err
}

// Report is what one run did.
type Report struct {
	Expired  int64 `json:"expired"`  // locks found older than their time to live
	Released int64 `json:"released"` // given back
	Held     int64 `json:"held"`     // left alone: an event of their aggregate still waits
	Dead     int64 `json:"dead"`     // left alone: a DEAD event holds them
	Gone     int64 `json:"gone"`     // settled by somebody else meanwhile
	Failed   int64 `json:"failed"`   // could not be released; see the error
}

func (r Report) counts() schedule.Counts {
	return schedule.Counts{"expired": r.Expired, "released": r.Released, "held": r.Held, "dead": r.Dead, "gone": r.Gone, "failed": r.Failed}
}

func reportOf(c schedule.Counts) Report {
	return Report{Expired: c["expired"], Released: c["released"], Held: c["held"], Dead: c["dead"], Gone: c["gone"], Failed: c["failed"]}
}

// reap runs every task. A task that fails does not keep the others from running.
func (r *Reaper) reap(ctx context.Context) (Report, error) {
	var report Report
	var errs []error
	for _, t := range r.tasks {
		if err := r.reapTask(ctx, t, &report); err != nil {
			errs = append(errs, fmt.Errorf("reaper: %s: %w", t.Name, err))
		}
	}
	return report, errors.Join(errs...)
}

// reapTask pages through the expired locks by their IDs, so that those it must leave alone
// never hide those behind them.
func (r *Reaper) reapTask(ctx context.Context, t Task, report *Report) error {
	q, errs := Query{OlderThan: t.TTL, Limit: r.cfg.Batch}, []error(nil)
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
			if err := r.reapLock(ctx, t, l, report); err != nil {
				report.Failed++
				errs = append(errs, fmt.Errorf("lock %s of %s %s: %w", l.ID, l.AggregateType, l.AggregateID, err))
			}
		}
		if len(locks) < q.Limit {
			break
		}
		if last := locks[len(locks)-1].ID; last <= q.After {
			return errors.Join(append(errs, fmt.Errorf("find: the page after %q ends with %q: it must be in the order of IDs", q.After, last))...)
		}
		q.After = locks[len(locks)-1].ID
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// reapLock decides about one lock, in a transaction of its own.
func (r *Reaper) reapLock(ctx context.Context, t Task, l Lock, report *Report) error {
	var count *int64
	err := r.db.RunInTx(ctx, r.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		waiting, dead, err := r.events.OpenEvents(ctx, tx, l.AggregateType, l.AggregateID)
		switch {
		case err != nil:
			return err
		case waiting > 0:
			count = &report.Held
			return nil
		case dead > 0 && (!t.ReleaseDead || l.Age < r.cfg.DeadTimeout):
			count = &report.Dead
			return nil
		}
		released, err := t.Release(ctx, tx, l)
		if count = &report.Gone; released && err == nil {
			count = &report.Released
			err = r.note(ctx, tx, t, l)
		}
		return err
	})
	if err != nil {
		return err
	}
	*count++
	r.tell(ctx, t, l, count, report)
	return nil
}

// note leaves in the audit log that a lock was released, for whoever asks what became of it.
func (r *Reaper) note(ctx context.Context, tx bun.Tx, t Task, l Lock) error {
	return audit.Write(ctx, tx, r.d, audit.Entry{
		Actor: "reaper", Action: "release", Target: audit.Aggregate(l.AggregateType, l.AggregateID),
		Reason: "the lock was " + l.Age.Round(time.Second).String() + " old", Details: t.Name + " " + l.ID,
	})
}

func (r *Reaper) tell(ctx context.Context, t Task, l Lock, count *int64, report *Report) {
	attrs := []any{"task", t.Name, "lock", l.ID, telemetry.AggregateType, l.AggregateType, telemetry.AggregateID, l.AggregateID, "age", l.Age}
	switch {
	case count == &report.Released:
		telemetry.Add(ctx, r.released, 1, "task", t.Name)
		r.cfg.Logger.InfoContext(ctx, "lock released", attrs...)
	case count == &report.Dead && l.Age >= r.cfg.DeadTimeout:
		r.cfg.Logger.ErrorContext(ctx, "lock is held by a DEAD event: retry or skip the event", attrs...)
	default:
		r.cfg.Logger.DebugContext(ctx, "lock left alone", attrs...)
	}
}
