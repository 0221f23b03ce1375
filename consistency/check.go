package consistency

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/schema"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/paging"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Checker is a [Check] of any type.
type Checker interface {
	name() string
	validate(cfg Config) error
	run(ctx context.Context, s *Consistency, p *pass, r *Result) error
	lacks(ctx context.Context, db *bun.DB, key string) ([]string, error)
}

// Query asks a check for the next page of facts.
type Query struct {
	From  time.Duration // facts at most this old, by the database's clock
	To    time.Duration // and at least this old
	After string        // only facts whose Key follows in the database's order; empty for the first page
	Limit int           // at most so many, in that order
}

// Page is all that a SELECT needs to ask for the page, from a condition on, by the database's clock and in its order of keys. Give
// it bun as the last argument:
//
//	db.QueryContext(ctx, "SELECT o.id, o.paid_at FROM orders o WHERE o.status = 'PAID' AND ?", q.Page("o.paid_at", "o.id"))
//
// Since is the column with the time of the fact, in UTC, and key the column with the fact's Key, of any type that the
// database can read from the text that Key returns, with the name or alias of its table: PostgreSQL would sort "SELECT
// id::text" by texts. Both are SQL: never take them from input.
func (q Query) Page(since, key string) schema.QueryAppender {
	return paging.Page{Since: since, Key: key, Younger: q.From, Older: q.To, After: q.After, Limit: q.Limit}
}

// Check declares that a state implies an event. T is a fact: a paid order, say.
type Check[T any] struct {
	// Name of the check in logs, metrics and reports, such as "order.paid".
	Name string
	// Window is how far back it looks. Default: Config.ScanWindow.
	Window time.Duration
	// Grace is how young a fact may be without its event. Default: Config.Grace.
	Grace time.Duration
	// ReportOnly finds and reports, and repairs nothing. Default: Config.ReportOnly.
	ReportOnly bool
	// Find returns a page of facts of the window, in the order of their Keys: see [Query.Page]. It may
	// return facts whose event exists if Missing is set.
	Find func(ctx context.Context, db bun.IDB, q Query) ([]T, error)
	// Key is the fact's unique key as text: the cursor, and its name in the report. How keys are sorted is the
	// database's business.
	Key func(T) string
	// Missing, if set, keeps of a page the facts whose event is missing. Default: all are.
	Missing func(ctx context.Context, db bun.IDB, facts []T) ([]T, error)
	// Of returns the facts of a business key, whatever their age, for whoever asks what is wrong
	// with it. Default: the check cannot say.
	Of func(ctx context.Context, db bun.IDB, key string) ([]T, error)
	// Repair looks at the fact again under tx and saves its full event. It reports
	// false if there was nothing to repair any more. Nil means report only.
	Repair func(ctx context.Context, tx bun.Tx, fact T) (bool, error)
}

// Result is what a check found.
type Result struct {
	Found    int      `json:"found"`    // facts without their event
	Repaired int      `json:"repaired"` // missing events that were saved
	Settled  int      `json:"settled"`  // in order again when it was their turn
	Failed   int      `json:"failed"`   // repairs that failed
	Keys     []string `json:"keys"`     // of the facts found, the first 100
}

const maxKeys = 100

func (c Check[T]) name() string { return c.Name }

func (c Check[T]) validate(cfg Config) error {
	err := text.EventType("consistency.Check.Name", c.Name)
	if c.Find == nil || c.Key == nil {
		err = errors.Join(err, fmt.Errorf("consistency.Check %s: Find and Key must not be nil", c.Name))
	}
	if c.Window < 0 || c.Grace < 0 {
		err = errors.Join(err, fmt.Errorf("consistency.Check %s: Window is %v and Grace %v: they must not be negative", c.Name, c.Window,
			c.Grace))
	}
	from, to := c.bounds(cfg)
	if cfg.Retention > 0 && from > cfg.Retention {
		err = errors.Join(err, fmt.Errorf("consistency.Check %s: Window (or Config.ScanWindow) is %v, longer than Config.Retention, %v: "+
			"make it shorter, or delivered events would be found missing", c.Name, from, cfg.Retention))
	}
	if to >= from {
		err = errors.Join(err, fmt.Errorf("consistency.Check %s: Grace (or Config.Grace) is %v, and Window (or Config.ScanWindow) only %v: "+
			"make the window longer than the grace", c.Name, to, from))
	}
	return err
}

func (c Check[T]) bounds(cfg Config) (from, to time.Duration) {
	from, to = c.Window, c.Grace
	if from == 0 {
		from = cfg.ScanWindow
	}
	if to == 0 {
		to = cfg.Grace
	}
	return from, to
}

// run pages through the window.
func (c Check[T]) run(ctx context.Context, s *Consistency, p *pass, r *Result) error {
	var errs []error
	from, to := c.bounds(s.cfg)
	q, cursor := Query{From: from, To: to, Limit: s.cfg.Batch}, paging.Cursor{}
	for ctx.Err() == nil {
		facts, err := c.Find(ctx, s.db, q)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("find: %w", err))...)
		}
		missing := facts
		if c.Missing != nil && len(facts) > 0 {
			if missing, err = c.Missing(ctx, s.db, facts); err != nil {
				return errors.Join(append(errs, fmt.Errorf("find: %w", err))...)
			}
		}
		for _, fact := range missing {
			err := contain.Call("it", func() error { return c.repair(ctx, s, p, fact, r) })
			if errors.Is(err, ErrTooManyRepairs) {
				return errors.Join(append(errs, err)...)
			}
			if err != nil {
				r.Failed++
				errs = append(errs, fmt.Errorf("fact %s: %w", c.Key(fact), err))
				contain.Log(ctx, s.cfg.Logger, err, "check", c.Name, "fact", c.Key(fact))
			}
		}
		if len(facts) < q.Limit {
			break
		}
		last := c.Key(facts[len(facts)-1])
		if err := cursor.Next(q.After, last); err != nil {
			return errors.Join(append(errs, err)...)
		}
		q.After = last
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// lacks names the facts of a business key whose event is missing.
func (c Check[T]) lacks(ctx context.Context, db *bun.DB, key string) ([]string, error) {
	if c.Of == nil {
		return nil, nil
	}
	facts, err := c.Of(ctx, db, key)
	if err == nil && c.Missing != nil && len(facts) > 0 {
		facts, err = c.Missing(ctx, db, facts)
	}
	keys := make([]string, len(facts))
	for i, f := range facts {
		keys[i] = c.Key(f)
	}
	return keys, err
}

// repair reports one fact and repairs it, in a transaction of its own.
func (c Check[T]) repair(ctx context.Context, s *Consistency, p *pass, fact T, r *Result) error {
	r.Found++
	if len(r.Keys) < maxKeys {
		r.Keys = append(r.Keys, c.Key(fact))
	}
	telemetry.Add(ctx, s.missing, 1, "check", c.Name)
	if c.Repair == nil || c.ReportOnly || s.cfg.ReportOnly {
		s.cfg.Logger.WarnContext(ctx, "fact is not consistent", "check", c.Name, "fact", c.Key(fact))
		return nil
	}
	if p.repaired >= s.cfg.MaxRepairs {
		return ErrTooManyRepairs
	}
	var repaired bool
	err := s.db.RunInTx(ctx, s.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) (err error) {
		if repaired, err = c.Repair(ctx, tx, fact); err != nil || !repaired {
			return err
		}
		return store.WriteAudit(ctx, tx, s.d, store.AuditEntry{
			Actor: "consistency", Action: "repair", Target: c.Key(fact), Reason: "the event that this fact implies was missing", Details: c.Name,
		})
	})
	if err != nil {
		return err
	}
	if !repaired {
		r.Settled++
		return nil
	}
	r.Repaired++
	p.repaired++
	telemetry.Add(ctx, s.repaired, 1, "check", c.Name)
	s.cfg.Logger.WarnContext(ctx, "missing event saved", "check", c.Name, "fact", c.Key(fact))
	return nil
}
