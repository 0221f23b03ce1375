package database

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/reaper"
)

// OrderLocks are the rows of a table by which orders hold something: at most one for each order, whose id is that of the lock.
type OrderLocks struct {
	Table string
	Order string // the column of the order
	Since string // the column of the time
	Held  string // the condition of a row that still holds it
}

// Find is what a task of the reaper needs: a page of those that are too old.
func (l OrderLocks) Find(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
	return l.read(ctx, db, "?", q.Page(l.Since, l.Table+"."+l.Order))
}

// Of is what a task of the reaper needs: the lock of one order, however old it is.
func (l OrderLocks) Of(ctx context.Context, idb bun.IDB, a reaper.Aggregate) ([]reaper.Lock, error) {
	return l.read(ctx, idb, l.Order+" = ?", a.ID)
}

func (l OrderLocks) read(ctx context.Context, idb bun.IDB, where string, arg any) (locks []reaper.Lock, err error) {
	rows, err := idb.QueryContext(ctx, "SELECT "+l.Order+", ? FROM "+l.Table+" WHERE "+l.Held+" AND "+where, reaper.Age(l.Since), arg)
	if err != nil {
		return nil, fmt.Errorf("locks of %s: %w", l.Table, err)
	}
	defer rows.Close()
	for rows.Next() {
		lock := reaper.Lock{AggregateType: "ORDER"}
		var age int64
		if err := rows.Scan(&lock.ID, &age); err != nil {
			return nil, fmt.Errorf("locks of %s: %w", l.Table, err)
		}
		lock.AggregateID, lock.Age = lock.ID, time.Duration(age)*time.Microsecond
		locks = append(locks, lock)
	}
	return locks, rows.Err()
}
