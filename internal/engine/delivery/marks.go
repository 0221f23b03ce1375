package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/store"
)

// marks writes and asks what must stand in the transaction of a batch: the SUCCESS rows, whether each delivery may run, and whether
// both still hold before COMMIT.
type marks struct {
	l  *Lanes
	c  *handler.Consumer
	ln *lane
}

func pairsOf(ds []*delivery) []dialect.Pair {
	pairs := make([]dialect.Pair, len(ds))
	for i, d := range ds {
		pairs[i] = d.pair()
	}
	return pairs
}

// findRecorded sets aside what has a row already. Events that nobody ever claimed
// before can have none, and the unique key guards them all the same.
func (m *marks) findRecorded(ctx context.Context, tx bun.IDB, ds []*delivery, aside map[*delivery]store.Answer) error {
	ids := make([]string, 0, len(ds))
	for _, d := range ds {
		if !d.isFresh {
			ids = append(ids, d.Event.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	existing, err := m.l.regs.Log.Existing(ctx, tx, m.c.Key, ids)
	for _, d := range ds {
		if _, ok := existing[d.Event.ID]; ok {
			aside[d] = recorded
		}
	}
	return err
}

func forget(ds []*delivery) {
	for _, d := range ds {
		d.isFresh = false
	}
}

// readBack decides an unknown COMMIT: whether it happened is in the consume log. One row does not tell: if the lease of
// its event has run out, another instance may have written it. If the COMMIT did not happen, running again is safe: the
// unique key stops it until a COMMIT still under way is over.
func (m *marks) readBack(ctx context.Context, ds []*delivery, commitErr error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	for try := 1; ; try++ {
		there, err := m.l.regs.Log.Marked(ctx, m.l.regs.DB, m.c.Key, eventIDs(ds))
		switch {
		case err == nil && there:
			return nil
		case err == nil:
			forget(ds)
			return &infraError{err: fmt.Errorf("commit: %w", commitErr)}
		case try == infraTries:
			forget(ds)
			return &infraError{err: fmt.Errorf("commit: %w; its outcome could not be read back: %w", commitErr, err)}
		}
		pause(ctx, try)
	}
}

// gateOf is the consumer's question to the consume log, of this owner of leases.
func (l *Lanes) gateOf(c *handler.Consumer) store.Gate {
	return store.Gate{
		Consumer: c.Key, Types: c.EventTypes(), Ordered: !c.Config.Unordered, PassDead: c.Config.PassDead, Owner: l.cfg.Instance,
		Replay: c.Replays != nil, IsFilled: l.cfg.Roster.IsFilled(c.Key),
	}
}
