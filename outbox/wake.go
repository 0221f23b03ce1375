package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
)

// commitHook wakes the publishers of this process when a transaction that saved an
// event has committed. It needs nothing but the user's plain db.RunInTx: bun keeps the
// context that the hook returns for BEGIN, and shows it again for COMMIT.
type commitHook struct {
	ob *Outbox
	// loose is until when (Unix ns) every commit wakes, because an event was saved
	// with a context that does not come from its transaction.
	loose atomic.Int64
}

const looseFor = 10 * time.Second

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

// AfterQuery wakes the publishers after the commit of a transaction that saved something.
// A commit with an unknown outcome wakes too: looking in vain costs little.
func (h *commitHook) AfterQuery(ctx context.Context, ev *bun.QueryEvent) {
	if ev.Query != "COMMIT" {
		return
	}
	m, ok := ctx.Value(markKey{h}).(*mark)
	if !ok {
		return
	}
	switch {
	case m.saved.Load() && ev.Err == nil:
		m.mu.Lock()
		h.ob.handOver(m.ids)
		m.mu.Unlock()
	case m.saved.Load(), time.Now().UnixNano() < h.loose.Load():
		h.ob.Wake()
	}
	if m.saved.Load() {
		h.ob.stmts.Learn(ctx) // here no transaction is open
	}
}

// saved notes that the transaction of ctx has saved an event.
func (h *commitHook) saved(ctx context.Context, _ transaction, rows []store.NewEvent) {
	if m, ok := ctx.Value(markKey{h}).(*mark); ok {
		m.saved.Store(true)
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, r := range rows {
			if r.DeliverAt.IsZero() {
				m.ids = append(m.ids, r.ID)
			}
		}
		return
	}
	h.loose.Store(time.Now().Add(looseFor).UnixNano())
}

// handOver gives just committed events to a publisher of this process.
func (o *Outbox) handOver(ids []string) {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	for p := range o.here.wakers {
		p.handover.Put(ids)
		return
	}
}

// Wake makes the publishers of this process look for events at once. Saving does this
// by itself; use it after writing events by other means.
func (o *Outbox) Wake() {
	o.here.mu.Lock()
	defer o.here.mu.Unlock()
	for _, wake := range o.here.wakers {
		wake()
	}
}
