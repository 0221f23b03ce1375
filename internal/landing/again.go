package landing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/spi"
)

const (
	// again is the partition of what is landed again. One instance has it at a time, so that these keep their order.
	again = "again"
	// againFor is how long it has it, and a delivery that it has taken.
	againFor = time.Minute
	// againAtOnce is how many deliveries are taken together, and againBytes how long their events may be.
	againAtOnce = 50
	againBytes  = 8 << 20
)

// AgainConfig says how deliveries are leased that are to be landed again. A run that ends without an answer has met the end of its
// process, or a database that is away: neither is about the message.
func AgainConfig() remote.Config {
	return remote.Config{Lease: againFor, MaxAttempts: 100, Backoff: func(int) time.Duration { return againFor }}
}

// Again lands what operators have asked for, and ends their deliveries: with SUCCESS, as SKIPPED, or DEAD again with the reason.
func (l *Landing) Again(ctx context.Context, inbox, eventType string, read func(spi.Event) (spi.Event, error)) (n spi.Counts, err error) {
	isDue, err := l.queues.IsDue(ctx, l.cfg.DB, inbox)
	if err != nil || !isDue {
		return n, err
	}
	if owns, err := l.Own(ctx, inbox, again, againFor); err != nil || !owns {
		return n, err
	}
	due, err := l.cfg.Deliveries.Fetch(ctx, inbox, []string{eventType}, againAtOnce, againBytes)
	if err != nil {
		return n, err
	}
	for _, d := range due {
		landed, end, err := l.landAgain(ctx, inbox, d, read)
		if err != nil { // the others are due again when their leases are over
			return n, err
		}
		n.Landed, n.Duplicates = n.Landed+landed.Landed, n.Duplicates+landed.Duplicates
		end.Lease, end.By = d.Lease, l.cfg.Instance
		if _, err := l.cfg.Deliveries.Finish(ctx, end); err != nil {
			return n, fmt.Errorf("outbox: land %s again: %w", d.Event.ID, err)
		}
	}
	return n, nil
}

// landAgain lands one, and says how its delivery ends.
func (l *Landing) landAgain(ctx context.Context, inbox string, d remote.Delivery, read func(spi.Event) (spi.Event, error),
) (n spi.Counts, end remote.Finish, err error) {
	e, err := read(spi.Event{ID: d.Event.ID, Type: d.Event.Type, Payload: d.Event.Payload, Metadata: d.Event.Metadata})
	if err == nil {
		n, err = l.Land(ctx, spi.Batch{Inbox: inbox, Partition: again, IsOwned: true, Events: []spi.Event{e}})
	} else if !errors.Is(err, spi.ErrLeftOut) {
		err = kind.Of(err, spi.ErrData)
	}
	switch {
	case errors.Is(err, spi.ErrLeftOut):
		return n, remote.Finish{Outcome: remote.Skipped, Error: err.Error()}, nil
	case errors.Is(err, spi.ErrData):
		return n, remote.Finish{Outcome: remote.Permanent, Error: err.Error()}, nil
	case err != nil:
		return n, end, err
	}
	result, err := json.Marshal(map[string]any{"landedAs": e.ID, "wasThere": n.Duplicates > 0})
	return n, remote.Finish{Outcome: remote.Success, Result: string(result)}, err
}
