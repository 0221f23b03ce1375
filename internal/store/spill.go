package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
)

// Spill writes the PENDING rows of deliveries that have no row yet and cannot run now: they wait in the log.
type Spill struct {
	db    *bun.DB
	d     dialect.Dialect
	stmts *prepared.Statements
}

const (
	// rowsPerStatement keeps a statement with the values of many deliveries well below what databases take at once.
	rowsPerStatement = 1000
	// fewConsumers is up to how many consumers each gets a statement of its own, where that is the cheaper way to copy columns.
	fewConsumers  = 8
	insertWaiting = insertInto + ", status, next_retry_at, started) "
)

// waitsAs is how deliveries without a row begin to wait.
type waitsAs struct{ left, suspect bool }

// columns are the values of those of insertWaiting that follow the delivery's own.
func (how waitsAs) columns(due string) string {
	return ", 'PENDING', " + due + ", " + strconv.Itoa(startedIf(how.suspect))
}

// Defer inserts PENDING rows for deliveries that cannot run now, due after delay, or never if they are left to others.
// A delivery that has a row already, by uk_event_consumer, is left as it is.
func (s Spill) Defer(ctx context.Context, idb bun.IDB, ds []Delivery, delay time.Duration) error {
	groups := make(map[waitsAs]map[string][]Delivery)
	for _, d := range ds {
		how := waitsAs{d.Left, d.Suspect}
		if groups[how] == nil {
			groups[how] = make(map[string][]Delivery)
		}
		groups[how][d.Consumer] = append(groups[how][d.Consumer], d)
	}
	for _, how := range []waitsAs{{}, {suspect: true}, {left: true}, {left: true, suspect: true}} {
		if err := s.deferAs(ctx, idb, groups[how], how, delay); err != nil {
			return fmt.Errorf("consume log: queue deliveries: %w", err)
		}
	}
	return nil
}

// deferAs inserts the PENDING rows of deliveries, by their consumers, that wait in one way.
func (s Spill) deferAs(ctx context.Context, idb bun.IDB, groups map[string][]Delivery, how waitsAs, delay time.Duration) error {
	keys := slices.Sorted(maps.Keys(groups)) // transactions that write many rows do it in one order
	if s.d.SelectsFreely && len(keys) <= fewConsumers {
		for _, key := range keys {
			for chunk := range slices.Chunk(groups[key], dialect.MostIDs) {
				if err := s.deferFromEvents(ctx, idb, chunk, how, delay); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var untried []Delivery
	for _, key := range keys {
		for _, d := range groups[key] {
			d.Attempts = 0
			untried = append(untried, d)
		}
	}
	for chunk := range slices.Chunk(untried, rowsPerStatement) {
		if err := s.deferByValue(ctx, idb, chunk, how, delay); err != nil {
			return err
		}
	}
	return nil
}

// deferByValue inserts the PENDING rows of deliveries of several consumers.
func (s Spill) deferByValue(ctx context.Context, idb bun.IDB, ds []Delivery, how waitsAs, delay time.Duration) error {
	due := after(s.d, delay)
	if how.left {
		due = s.d.Never
	}
	_, err := idb.ExecContext(ctx, insertWaiting+valuesOf(s.db.Dialect(), ds, how.columns(due))+s.d.Ignore(uniqueEvent))
	return err
}

// deferFromEvents inserts the PENDING rows of one consumer by what stands in their events, by the primary key of those.
func (s Spill) deferFromEvents(ctx context.Context, idb bun.IDB, ds []Delivery, how waitsAs, delay time.Duration) error {
	due, args := s.d.After, []any{ds[0].Consumer, 0, dialect.Micro(delay), outboxIDs(ds)}
	if how.left {
		due, args = s.d.Never, []any{ds[0].Consumer, 0, outboxIDs(ds)}
	}
	_, err := s.stmts.On(idb).ExecContext(ctx,
		insertWaiting+fromEvents+how.columns(due)+" FROM "+eventTable+" AS e WHERE e.id IN (?)"+inOrder+s.d.Ignore(uniqueEvent), args...)
	return err
}

func outboxIDs(ds []Delivery) []int64 {
	ids := make([]int64, len(ds))
	for i, d := range ds {
		ids[i] = d.OutboxID
	}
	return ids
}
