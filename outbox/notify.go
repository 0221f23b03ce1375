package outbox

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/bluecone-go/bluecone/internal/listen"
	"github.com/bluecone-go/bluecone/internal/store"
)

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
