package claim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Claimer leases due events for one run of a publisher, and knows how far it has got. Only the goroutine of the publisher's loop
// uses it.
type Claimer struct {
	db     *bun.DB
	d      dialect.Dialect
	stmts  *prepared.Statements
	events store.Claims
	order  store.Order
	known  *registry.Registry
	lease  store.Lease

	walks     [Expired + 1]Walk // by kind
	watermark Watermark
	fairness  Fairness
}

// NewClaimer returns a claimer that writes this lease into the rows of the events.
func NewClaimer(db *bun.DB, d dialect.Dialect, stmts *prepared.Statements, known *registry.Registry, lease store.Lease) *Claimer {
	return &Claimer{db: db, d: d, stmts: stmts, events: store.NewClaims(d, stmts), order: store.NewOrder(d, stmts), known: known, lease: lease}
}

// finishWithin is how long a claim may go on when the end of its run meets it.
const finishWithin = 5 * time.Second

// inTx runs a short transaction. The end of the run does not cut it off: a COMMIT whose answer nobody waits for may be stored after
// the run has given back what it had leased, and then the events wait for the end of their leases. A deadline does cut it off.
func (c *Claimer) inTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	claiming, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() {
		cause, wait := context.Cause(ctx), finishWithin
		if errors.Is(cause, context.DeadlineExceeded) {
			wait = 0
		}
		time.AfterFunc(wait, func() { cancel(cause) })
	})()
	return store.InTx(claiming, c.db, c.d, c.stmts, fn)
}

// WalkThoroughly lets claims of every kind start at the start, and go on until they have seen the last due event and found none.
func (c *Claimer) WalkThoroughly() {
	for kind := range c.walks {
		c.walks[kind] = ThoroughWalk()
	}
}

// Relax ends that. Claims go on where they are.
func (c *Claimer) Relax() {
	for kind := range c.walks {
		c.walks[kind].Relax()
	}
}

// Rests answers 0 if a claim of a kind is worth it, and after what time to ask again otherwise. isIdle says that this
// instance has nothing to do.
func (c *Claimer) Rests(now time.Time, kind Kind, isIdle bool) time.Duration {
	if kind != New || c.walks[kind].IsThorough() {
		return 0
	}
	return c.watermark.Rests(now, isIdle)
}

// Start is where the next claim of a kind starts.
func (c *Claimer) Start(now time.Time, kind Kind) store.Cursor {
	return c.walks[kind].Start(now, kind, &c.watermark)
}

// GoOn decides, after a claim that ended now and took so long, whether another one follows at once, and if not, after what
// time to claim NEW events once more (0: no earlier than anything else is looked for).
func (c *Claimer) GoOn(now time.Time, r Result, took time.Duration) (more bool, again time.Duration) {
	return c.walks[r.Kind].GoOn(now, r, took, &c.watermark)
}

// dueOf is what a claim of a kind takes.
func dueOf(kind Kind) store.DueKind {
	switch kind {
	case Scheduled:
		return store.DueParked // see [Claimer.ClaimDelayed] for the others
	case Expired:
		return store.DueExpired
	}
	return store.DueNew
}

// Claim leases up to limit due events of one kind, from a cursor on, in a short READ COMMITTED transaction that is over before
// any handler runs. It stops before their payloads have more than maxBytes, but takes one at least.
func (c *Claimer) Claim(ctx context.Context, kind Kind, from store.Cursor, limit, maxBytes int) (r Result, err error) {
	err = c.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		r = Result{Kind: kind, From: from}
		if err := c.events.AlongIndexes(ctx, tx); err != nil {
			return err
		}
		s := search{Claimer: c, tx: tx, kind: dueOf(kind), limit: limit, maxBytes: maxBytes}
		if err := s.find(ctx, &r); err != nil {
			return err
		}
		return c.leaseRows(ctx, tx, &r, kind == Expired)
	})
	if err != nil {
		return Result{}, err
	}
	return r, nil
}

// ClaimDelayed claims events that their producers delayed and that are due now. They become NEW first, in a
// transaction of its own: from then on no later event of their aggregates is claimed, and those that other instances
// work on are waited for. What has to wait stays NEW, and is claimed like any other such event.
func (c *Claimer) ClaimDelayed(ctx context.Context, limit, maxBytes int) (r Result, err error) {
	var ids []int64
	err = c.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
		ids, err = c.events.ActivateDelayed(ctx, tx, limit)
		return err
	})
	if err != nil || len(ids) == 0 {
		return Result{}, err
	}
	err = c.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		r = Result{Kind: Scheduled, Seen: len(ids), IsFull: true}
		rows, err := c.events.LockNew(ctx, tx, ids, maxBytes)
		if err != nil {
			return err
		}
		if r.Rows, err = c.keepClaimable(ctx, tx, rows); err != nil {
			return err
		}
		return c.leaseRows(ctx, tx, &r, false)
	})
	if err != nil {
		return Result{}, err
	}
	return r, nil
}

// leaseRows reads the registry and leases what a claim keeps, in id order.
func (c *Claimer) leaseRows(ctx context.Context, tx bun.Tx, r *Result, hasExpired bool) (err error) {
	if len(r.Rows) == 0 {
		return nil
	}
	var now int64
	if r.Registry, now, err = c.known.Read(ctx, tx); err != nil {
		return err
	}
	r.Until = now + dialect.Micro(c.lease.For)
	ids := make([]int64, len(r.Rows))
	for i := range r.Rows {
		row := &r.Rows[i]
		ids[i] = row.OutboxID // locked by this transaction
		row.LockVersion++
		if hasExpired {
			row.RetryCount++
		}
	}
	return c.events.Lease(ctx, tx, c.lease, ids, hasExpired)
}

// OtherTenants lists, if it is time for a look, up to [MostHandedOver] new events of tenants that have no good part of a
// claim, by their event_ids.
func (c *Claimer) OtherTenants(ctx context.Context, now time.Time, r Result) ([]string, error) {
	back, isTime := c.fairness.Look(now)
	if !isTime {
		return nil, nil
	}
	busy := BusyTenants(r.Rows)
	if len(busy) == 0 {
		return nil, nil
	}
	return c.events.NewOfOthers(ctx, c.db, back, busy, MostHandedOver)
}

// Orphans are the events that this run has leased, with their lock versions, but for those that are known to be in flight.
func (c *Claimer) Orphans(ctx context.Context, inFlight map[int64]bool) ([]dialect.Pair, error) {
	mine, err := c.events.LeasesOf(ctx, c.db, c.lease.Owner)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(mine, func(p dialect.Pair) bool { return inFlight[p.ID] }), nil
}

// ExpireLeases ends leases of events that another run has, and reports whether there may be more.
func (c *Claimer) ExpireLeases(ctx context.Context, owner string) (more bool, err error) {
	err = c.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
		more, err = c.events.ExpireLeases(ctx, tx, owner)
		return err
	})
	return more, err
}
