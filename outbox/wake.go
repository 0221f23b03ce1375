package outbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/listen"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// commits are the ways in which the publishers learn of commits.
type commits struct {
	hook   *commitHook
	unseen unseen
	notify notify
}

func (c *commits) notice(ob *Outbox) {
	c.hook, c.unseen.ob, c.unseen.commits, c.notify.ob = &commitHook{ob: ob}, ob, make(chan struct{}, 1), ob
}

// commitHook notices the commit of a transaction that saved events. It needs nothing but the user's plain db.RunInTx: bun keeps the
// context that the hook returns for BEGIN, and shows it again for COMMIT.
type commitHook struct{ ob *Outbox }

type markKey struct{ hook *commitHook }

// mark belongs to one transaction.
type mark struct {
	saved atomic.Bool
	mu    sync.Mutex
	ids   []string // what can be handed over
}

// BeforeQuery gives a beginning transaction its mark.
func (h *commitHook) BeforeQuery(ctx context.Context, ev *bun.QueryEvent) context.Context {
	if ev.Query != "BEGIN" || store.IsEngine(ctx) {
		return ctx
	}
	return context.WithValue(ctx, markKey{h}, &mark{})
}

// AfterQuery hands what a committed transaction saved to one publisher of this process. If the outcome of the COMMIT is unknown, it
// wakes all: looking in vain costs little.
func (h *commitHook) AfterQuery(ctx context.Context, ev *bun.QueryEvent) {
	if ev.Query != "COMMIT" {
		return
	}
	m, ok := ctx.Value(markKey{h}).(*mark)
	switch {
	case !ok:
		return
	case !m.saved.Load(): // Save may have got another context, as it does in a handler
		signal(h.ob.unseen.commits)
		return
	}
	if ev.Err == nil {
		m.mu.Lock()
		h.ob.here.handOver(m.ids)
		m.mu.Unlock()
	} else {
		h.ob.Wake()
	}
	h.ob.stmts.Learn(ctx) // here no transaction is open
}

// markOf is the mark of a transaction whose commit will be seen, or nil. It is seen if the transaction is bun's, of the outbox's
// pool, and Save has got the context that db.RunInTx gave its function.
func (h *commitHook) markOf(ctx context.Context, tx transaction) *mark {
	m, ok := ctx.Value(markKey{h}).(*mark)
	if !ok || tx.formats == nil || tx.formats.NewRaw("").DB().DB != h.ob.db.DB {
		return nil
	}
	return m
}

// saved notes that the transaction of a mark, or without one, has saved events.
func (h *commitHook) saved(m *mark, rows []store.NewEvent) {
	var ids []string
	for _, r := range rows {
		if r.DeliverAt.IsZero() {
			ids = append(ids, r.ID)
		}
	}
	if m == nil {
		h.ob.unseen.add(time.Now(), ids)
		return
	}
	m.saved.Store(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ids = append(m.ids, ids...)
}

const (
	// lookEvery is how long the publishers of a process wait between two looks for commits that nobody reports.
	lookEvery = 2 * time.Millisecond
	// lookFor is how long they look for the commit of a transaction. Later the poll finds its events.
	lookFor = 2 * time.Second
)

// unseen looks for the commits of transactions that bun's hook does not see: plain ones, those of other pools, and those in which
// Save has got another context. It looks while a publisher of this process runs, until the events can be seen.
type unseen struct {
	ob      *Outbox
	commits chan struct{} // one was seen: it may be one of those that are looked for

	mu    sync.Mutex
	calls []unseenCall
	stop  context.CancelFunc // of the goroutine that looks, nil without one
	ended chan struct{}      // closed when it has ended
}

// unseenCall is a call of Save. What it has saved becomes visible together.
type unseenCall struct {
	ids   []string
	until time.Time
}

// add notes what a call of Save has saved, and looks for it if a publisher runs that would take it.
func (u *unseen) add(now time.Time, ids []string) {
	if len(ids) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ob.notify.hears() || !u.ob.here.any() || len(u.calls) == mostUnseen {
		return
	}
	u.calls = append(u.calls, unseenCall{ids, now.Add(lookFor)})
	if u.stop == nil {
		ctx, stop := context.WithCancel(context.Background())
		u.stop, u.ended = stop, make(chan struct{})
		go u.look(ctx, u.ended)
	}
}

// unsubscribe ends the wakes of a publisher, and with the last one the looks: nobody takes what they find.
func (u *unseen) unsubscribe(p *Publisher) {
	u.ob.here.unsubscribe(p)
	if u.ob.here.any() {
		return
	}
	u.mu.Lock()
	stop, ended := u.stop, u.ended
	u.mu.Unlock()
	if stop != nil {
		stop()
		<-ended
	}
}

// look looks again and again, until nothing is left to look for.
func (u *unseen) look(ctx context.Context, ended chan<- struct{}) {
	defer close(ended)
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-u.commits:
		}
		ids := u.open(ctx, time.Now())
		if len(ids) == 0 {
			return
		}
		asking, cancel := context.WithTimeout(ctx, lookFor)
		found, err := u.ob.saving.Committed(asking, u.ob.db, ids)
		cancel()
		if err != nil {
			u.giveUp(ctx, err)
		} else if shown := u.seen(found); len(shown) > 0 {
			u.ob.here.handOver(shown)
		}
		timer.Reset(lookEvery)
	}
}

// open are the first events of the calls that may still be looked for. Without any the looks are over.
func (u *unseen) open(ctx context.Context, now time.Time) (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if ctx.Err() != nil {
		u.calls = nil
	}
	u.calls = slices.DeleteFunc(u.calls, func(c unseenCall) bool { return !now.Before(c.until) })
	for _, c := range u.calls {
		ids = append(ids, c.ids[0])
	}
	if len(ids) == 0 {
		u.stop()
		u.stop = nil
	}
	return ids
}

// seen takes out the calls whose events were found, and returns all of these.
func (u *unseen) seen(found map[string]bool) (ids []string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = slices.DeleteFunc(u.calls, func(c unseenCall) bool {
		if found[c.ids[0]] {
			ids = append(ids, c.ids...)
		}
		return found[c.ids[0]]
	})
	return ids
}

// giveUp leaves all to the poll when the database has not answered.
func (u *unseen) giveUp(ctx context.Context, err error) {
	u.mu.Lock()
	u.calls = nil
	u.mu.Unlock()
	if ctx.Err() == nil {
		u.ob.logger.WarnContext(ctx, "commits could not be looked for; the poll finds the events", telemetry.Err, err)
	}
}

// notify tells the publishers of all instances by PostgreSQL what was saved, if [PublisherConfig.Notify] is set.
type notify struct {
	ob        *Outbox
	isUsed    atomic.Bool
	listening atomic.Int32 // publishers of this process that listen now
}

// check refuses Notify where it cannot work.
func (n *notify) check(cfg PublisherConfig) error {
	switch {
	case !cfg.Notify:
	case n.ob.d.Name != "postgres":
		return errors.New("outbox.PublisherConfig.Notify is set: only PostgreSQL can notify; leave it out, Poll finds the events of other " +
			"instances")
	case n.ob.db.DB.Stats().MaxOpenConnections == 1:
		return errors.New("outbox.PublisherConfig.Notify is set, and the pool has one connection, which the publisher would keep: " +
			"allow more by SetMaxOpenConns")
	}
	return nil
}

// use lets Save notify from now on.
func (n *notify) use(cfg PublisherConfig) {
	if cfg.Notify {
		n.isUsed.Store(true)
	}
}

// by is the transaction as it notifies. The payload is the name of an instance that sees the commit itself.
func (n *notify) by(tx store.Tx, isSeen bool) store.Tx {
	switch {
	case !n.isUsed.Load():
		return tx
	case isSeen:
		return tx.Notifying(n.ob.cfg.Instance)
	default:
		return tx.Notifying("")
	}
}

// hears reports whether a publisher of this process is told of every commit.
func (n *notify) hears() bool { return n.listening.Load() > 0 }

// listen wakes a publisher, from now until end, for what it is notified of.
func (n *notify) listen(ctx context.Context, cfg PublisherConfig, wake func()) (end func()) {
	if !cfg.Notify {
		return func() {}
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		listen.Keep(ctx, n.ob.db.DB, store.NotifyChannel, n.ob.logger, func(is bool) {
			if !is {
				n.listening.Add(-1)
				return
			}
			n.listening.Add(1)
			wake() // for what nobody has heard of
		}, func(payload string) {
			if payload != n.ob.cfg.Instance {
				wake()
			}
		})
	}()
	return func() {
		stop()
		<-ended
	}
}

// handOver gives just committed events to a publisher of this process.
func (h *publishers) handOver(ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for p := range h.subscribed {
		p.engine.Handover().Put(ids)
		return
	}
}

// Wake makes the publishers of this process look for events at once. Saving does this
// by itself; use it after writing events by other means.
func (o *Outbox) Wake() {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	for p := range o.here.subscribed {
		p.engine.Wake()
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
