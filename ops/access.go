package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// shareFor is how long identical reads share one answer.
const shareFor = time.Second

// access bounds what readers cost: so many statements at a time, each of them so long, and one
// answer for all who ask the same within a second.
type access struct {
	slots   chan struct{}
	timeout time.Duration
	flights singleflight.Group

	mu      sync.Mutex
	answers map[string]answer
}

type answer struct {
	at    time.Time
	value any
}

func newAccess(cfg Config) *access {
	return &access{slots: make(chan struct{}, cfg.Queries), timeout: cfg.Timeout, answers: make(map[string]answer)}
}

// share answers from what was read a moment ago, or reads. What it answers is shared: nobody may
// change it.
func share[T any](ctx context.Context, a *access, what string, key any, read func(ctx context.Context) (T, error)) (T, error) {
	id, err := json.Marshal(key)
	if err != nil {
		return read(ctx)
	}
	name := what + string(id)
	if v, ok := a.fresh(name); ok {
		return v.(T), nil
	}
	flight := a.flights.DoChan(name, func() (any, error) {
		v, err := read(context.WithoutCancel(ctx)) // others wait for it too, and every statement has its timeout
		if err == nil {
			a.keep(name, v)
		}
		return v, err
	})
	var none T
	select {
	case r := <-flight:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(T), nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

func (a *access) fresh(name string) (any, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	v, ok := a.answers[name]
	return v.value, ok && time.Since(v.at) < shareFor
}

func (a *access) keep(name string, v any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, old := range a.answers {
		if time.Since(old.at) >= shareFor {
			delete(a.answers, k)
		}
	}
	a.answers[name] = answer{at: time.Now(), value: v}
}

// forget drops all answers, so that whoever has changed something sees it.
func (a *access) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.answers)
}

// rows runs a reading statement when it is its turn, and calls scan for every row.
func (o *Ops) rows(ctx context.Context, scan func(rows *sql.Rows) error, query string, args ...any) (err error) {
	select {
	case o.access.slots <- struct{}{}:
		defer func() { <-o.access.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.access.timeout, fmt.Errorf("the database took longer than %v", o.access.timeout))
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}()
	if err := o.checkQuoting(ctx); err != nil {
		return err
	}
	rows, err := o.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// checkQuoting looks once whether the database reads texts as bun writes them: a search is somebody else's text.
func (o *Ops) checkQuoting(ctx context.Context) error {
	if o.quotes.Load() {
		return nil
	}
	err := o.d.CheckQuoting(ctx, o.db)
	o.quotes.Store(err == nil)
	return err
}

// row is rows for a statement that answers exactly one.
func (o *Ops) row(ctx context.Context, dest []any, query string, args ...any) error {
	n := 0
	err := o.rows(ctx, func(rows *sql.Rows) error {
		n++
		return rows.Scan(dest...)
	}, query, args...)
	if err == nil && n == 0 {
		err = sql.ErrNoRows
	}
	return err
}

// texts reads one column of text.
func (o *Ops) texts(ctx context.Context, query string, args ...any) ([]string, error) {
	var out []string
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var s string
		err := rows.Scan(&s)
		out = append(out, s)
		return err
	}, query, args...)
	return out, err
}

func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros).UTC()
}
