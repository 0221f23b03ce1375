package main

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/uptrace/bun"
)

// commits is a query hook that tells when a handler's transaction has committed. What a handler notes is known by its
// transaction's *bun.DB: the engine gives every transaction of a delivery one of its own.
type commits struct {
	open sync.Map // *bun.DB → *noted
}

// noted is what the handlers of one transaction have done.
type noted struct {
	tx   *sql.Tx
	seqs []int
	done func(seq int)
}

var errShared = errors.New("two transactions share a *bun.DB: the COMMIT of one cannot be told from the other's")

// note has done called with the number of an event when its handler's transaction has committed. The handlers of a
// transaction call it one after the other.
func (c *commits) note(tx bun.Tx, seq int, done func(seq int)) error {
	v, _ := c.open.LoadOrStore(tx.NewRaw("").DB(), &noted{tx: tx.Tx, done: done})
	n := v.(*noted) //nolint:forcetypeassert // nothing else is stored
	if n.tx != tx.Tx {
		return errShared
	}
	n.seqs = append(n.seqs, seq)
	return nil
}

// BeforeQuery does nothing.
func (c *commits) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery tells of what a COMMIT has ended.
func (c *commits) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if ev.Query != "COMMIT" && ev.Query != "ROLLBACK" {
		return
	}
	v, ok := c.open.LoadAndDelete(ev.DB)
	if !ok || ev.Query == "ROLLBACK" || ev.Err != nil {
		return
	}
	n := v.(*noted) //nolint:forcetypeassert // nothing else is stored
	for _, seq := range n.seqs {
		n.done(seq)
	}
}
