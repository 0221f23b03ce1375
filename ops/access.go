package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/internal/text"
)

// access bounds what readers cost: so many statements at a time, each of them so long, and one
// answer for all who ask the same within a second.
type access struct {
	db      *bun.DB
	sql     view.Reader
	turns   *turns
	timeout time.Duration
	quotes  atomic.Bool // the database reads texts as they are written

	mu      sync.Mutex
	flights map[string]*flight
	answers []answer // the oldest first
}

type answer struct {
	name  string
	at    time.Time
	value any
}

// flight is a read for all who wait for its answer.
type flight struct {
	cancel  context.CancelFunc
	waiting int
	done    chan struct{} // closed when value and err are there
	value   any
	err     error
}

func newAccess(db *bun.DB, d dialect.Dialect, cfg Config) *access {
	a := &access{db: db, turns: newTurns(cfg.Queries), timeout: cfg.Timeout, flights: make(map[string]*flight)}
	a.sql = view.Reader{D: d, Names: nameText, Documents: metadataText, Rows: a.rows}
	return a
}

// share answers from what was read a moment ago, or reads. What it answers is shared by callers with the same tenants:
// nobody may change it. A read ends when nobody waits for it any more.
func share[T any](ctx context.Context, a *access, what string, key any, read func(ctx context.Context) (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, err
	}
	id, err := json.Marshal([]any{CallerOf(ctx).Tenants, key})
	if err != nil {
		return read(ctx)
	}
	name := what + string(id)
	value, f := a.join(ctx, name, func(ctx context.Context) (any, error) { return read(ctx) })
	if f == nil {
		return value.(T), nil //nolint:forcetypeassert // what was kept under the name
	}
	select {
	case <-f.done:
		if f.err != nil {
			return none, f.err
		}
		return f.value.(T), nil //nolint:forcetypeassert // as above
	case <-ctx.Done():
		a.abandon(name, f)
		return none, ctx.Err()
	}
}

// join returns a fresh answer, or the read to wait for.
func (a *access) join(ctx context.Context, name string, read func(ctx context.Context) (any, error)) (any, *flight) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, old := range a.answers {
		if old.name == name && time.Since(old.at) < shareFor {
			return old.value, nil
		}
	}
	f := a.flights[name]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		a.flights[name] = f
		ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx)) // others may wait for it too
		go a.fly(ctx, name, f, read)
	}
	f.waiting++
	return nil, f
}

func (a *access) fly(ctx context.Context, name string, f *flight, read func(ctx context.Context) (any, error)) {
	defer f.cancel()
	f.value, f.err = read(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flights[name] == f {
		delete(a.flights, name)
		if f.err == nil {
			a.keep(answer{name, time.Now(), f.value})
		}
	}
	close(f.done)
}

// abandon is what somebody does who does not wait any longer. The last one ends the read.
func (a *access) abandon(name string, f *flight) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f.waiting--; f.waiting > 0 {
		return
	}
	f.cancel()
	if a.flights[name] == f { // whoever comes now begins another one
		delete(a.flights, name)
	}
}

func (a *access) keep(v answer) {
	a.answers = slices.DeleteFunc(a.answers, func(old answer) bool { return old.name == v.name || time.Since(old.at) >= shareFor })
	a.answers = append(a.answers, v)
	if n := len(a.answers) - maxAnswers; n > 0 {
		a.answers = slices.Delete(a.answers, 0, n)
	}
}

// forget drops all answers, so that whoever has changed something sees it. Reads that have begun answer those who wait
// for them, and nobody who comes later.
func (a *access) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.answers)
	a.answers = a.answers[:0]
	clear(a.flights)
}

// turn waits for the caller's turn. Until done, the bounded context is for statements: one at a time, all of them together
// within Config.Timeout.
func (a *access) turn(ctx context.Context) (bounded context.Context, done func(), err error) {
	leave, err := a.turns.take(ctx, CallerOf(ctx).Name)
	if err != nil {
		return nil, nil, err
	}
	bounded, cancel := context.WithTimeoutCause(ctx, a.timeout, fmt.Errorf("the database took longer than %v", a.timeout))
	return bounded, func() { cancel(); leave() }, nil
}

// rows runs a reading statement when it is its turn, and calls scan for every row.
func (a *access) rows(ctx context.Context, scan func(rows *sql.Rows) error, query string, args ...any) (err error) {
	ctx, done, err := a.turn(ctx)
	if err != nil {
		return err
	}
	defer done()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}()
	if err := a.checkQuoting(ctx); err != nil {
		return err
	}
	rows, err := a.db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
	}
	return rows.Err()
}

// errEnough ends the reading of rows.
var errEnough = errors.New("enough is read")

// budget is how many bytes may still be read.
type budget int

// take answers [errEnough] if the texts of a row, and the row itself, are beyond the budget.
func (b *budget) take(texts ...string) error {
	const row = 100 // what a row without texts takes
	n := row
	for _, t := range texts {
		n += len(t)
	}
	if *b -= budget(n); *b < 0 {
		return errEnough
	}
	return nil
}

// shown marks what was cut.
func shown(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return text.Clean(s, most)
}

// checkQuoting looks once whether the database reads texts as bun writes them: a search is somebody else's text.
func (a *access) checkQuoting(ctx context.Context) error {
	if a.quotes.Load() {
		return nil
	}
	err := a.sql.D.CheckQuoting(ctx, a.db)
	a.quotes.Store(err == nil)
	return err
}
