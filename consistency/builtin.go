package consistency

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/store"
)

// BuiltIn are checks of bluecone's own tables that every deployment wants. They report and
// repair nothing:
//
//	bluecone.undelivered   SENT events that a consumer never got that took their type when they were saved
//	bluecone.unregistered  deliveries that wait for a consumer that no instance runs
//	bluecone.dead          deliveries that have been DEAD for more than a day
//	bluecone.unknown       rows whose status is none of those documented
func BuiltIn() []Checker {
	return []Checker{
		finding("bluecone.undelivered", undelivered),
		finding("bluecone.unregistered", unregistered),
		finding("bluecone.dead", deadForLong),
		finding("bluecone.unknown", unknownStatus),
	}
}

// finding is a check whose facts are keys, found in one page.
func finding(name string, find func(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error)) Checker {
	return Check[string]{
		Name: name, ReportOnly: true, Key: func(key string) string { return key },
		Find: func(ctx context.Context, db bun.IDB, q Query) ([]string, error) {
			if q.After != "" {
				return nil, nil
			}
			d, err := dialectOf(db)
			if err != nil {
				return nil, err
			}
			keys, err := find(ctx, db, d, q)
			slices.Sort(keys)
			return keys, err
		},
	}
}

func dialectOf(db bun.IDB) (dialect.Dialect, error) {
	whole, ok := db.(*bun.DB)
	if !ok {
		return dialect.Dialect{}, fmt.Errorf("a *bun.DB is needed, not %T", db)
	}
	return dialect.Of(whole)
}

// eventsAtOnce is how many events a statement looks at, by primary key.
const eventsAtOnce = 1000

// undelivered looks at the SENT events of the window, the newest first, as far as it has found enough.
func undelivered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) (keys []string, err error) {
	ask, window := store.NewIrregular(d), dialect.Micro(q.From)
	for before := int64(math.MaxInt64); len(keys) < q.Limit; {
		events, err := ask.Stretch(ctx, db, before, window, eventsAtOnce)
		if err != nil {
			return nil, err
		}
		if events.Recent == 0 {
			break
		}
		found, err := ask.Undelivered(ctx, db, events, window, q.Limit-len(keys))
		if err != nil {
			return nil, err
		}
		keys, before = append(keys, joined(found)...), events.From
	}
	return keys, nil
}

// aDay is how long a consumer may be absent, and a delivery DEAD.
const aDay = 24 * time.Hour

func unregistered(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	seen, err := store.NewIrregular(d).ConsumersSeen(ctx, db, dialect.Micro(aDay))
	if err != nil {
		return nil, err
	}
	queues, err := store.Queued(ctx, db, d)
	if err != nil {
		return nil, err
	}
	isSeen := make(map[string]bool, len(seen))
	for _, name := range seen {
		isSeen[name] = true
	}
	queues = slices.DeleteFunc(store.In(queues, "PENDING", "FAILED", "PROCESSING"), func(q store.Queue) bool { return isSeen[q.Consumer] })
	found, err := store.NewIrregular(d).Deliveries(ctx, db, queues, q.Limit)
	return joined(found), err
}

func deadForLong(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	queues, err := store.Queued(ctx, db, d)
	if err != nil {
		return nil, err
	}
	found, err := store.NewIrregular(d).DeliveriesUnchanged(ctx, db, store.In(queues, "DEAD"), dialect.Micro(aDay), q.Limit)
	return joined(found), err
}

func unknownStatus(ctx context.Context, db bun.IDB, d dialect.Dialect, q Query) ([]string, error) {
	events, err := store.NewIrregular(d).EventsOfUnknownStatus(ctx, db, q.Limit)
	if err != nil {
		return nil, err
	}
	queues, err := store.Queued(ctx, db, d)
	if err != nil {
		return nil, err
	}
	queues = slices.DeleteFunc(queues, func(q store.Queue) bool {
		return slices.Contains([]string{"PENDING", "PROCESSING", "FAILED", "DEAD", "SKIPPED"}, q.Status)
	})
	log, err := store.NewIrregular(d).DeliveriesByStatus(ctx, db, queues, q.Limit)
	return append(joined(events), joined(log)...), err
}

func joined(rows [][]string) []string {
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = strings.Join(r, " ")
	}
	return out
}
