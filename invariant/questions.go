package invariant

import (
	"context"
	"fmt"
	"slices"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// own are the questions about the bus's own tables.
func (c *checker) own() []question {
	return []question{
		{invariant: "I4 completeness", broken: view.SentTooEarly()},                // SENT means that nobody waits
		{invariant: "I4 completeness", broken: view.OpenEvents(), quiet: true},     // every event has come to its end
		{invariant: "I4 completeness", broken: view.OpenDeliveries(), quiet: true}, // and so has every delivery
		{invariant: "I4 completeness", broken: view.LeftOut(), quiet: true},        // nobody who was registered has been left out
		{invariant: "I7 order", broken: view.OutOfOrder(c.cfg.Effects.Unordered)},
		{invariant: "I8 no stuck lease", broken: view.StuckEvents(c.d, c.cfg.Stuck)},
		{invariant: "I8 no stuck lease", broken: view.StuckDeliveries(c.d, c.cfg.Stuck)},
		{invariant: "I11 known states", broken: view.UnknownEventStatus()},
		{invariant: "I11 known states", broken: view.UnknownDeliveryStatus()},
		{invariant: "I20 retention takes only what is done", broken: view.Orphans()},
		{invariant: "I10 attempts are truthful", broken: view.UncountedAttempts()},
		{invariant: "I10 attempts are truthful", broken: view.UnexplainedAttempts()},
		{invariant: "I10 attempts are truthful", broken: view.AttemptsWithoutDelivery()},
	}
}

// pauses are the questions about the time between attempts.
func (c *checker) pauses() []question {
	return []question{{invariant: "I10 attempts are truthful", broken: view.EarlyAttempts(c.d)}}
}

// effects are the questions about what handlers noted.
func (c *checker) effects() []question {
	noted := view.Effects(c.cfg.Effects.Table)
	return []question{
		{invariant: "I5 no effect twice", broken: noted.Twice()},
		{invariant: "I6 an effect if and only if SUCCESS", broken: noted.WithoutSuccess()},
		{invariant: "I6 an effect if and only if SUCCESS", broken: noted.Missing(view.Deliveries)},
		{invariant: "I6 an effect if and only if SUCCESS", broken: noted.Missing(view.DeliveriesArchive)},
		{invariant: "I7 order", broken: noted.OutOfOrder(c.cfg.Effects.Unordered)},
	}
}

// history compares what producers were told with what there is.
func (c *checker) history(ctx context.Context) ([]Violation, error) {
	h := c.cfg.History
	ids := append(append([]string{}, h.Committed...), h.Failed...)
	for id := range h.Unknown {
		ids = append(ids, id)
	}
	there, err := c.existing(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("invariant: history: %w", err)
	}
	var out []Violation
	say := func(invariant, id, says string) {
		if len(out) < c.cfg.Most {
			out = append(out, Violation{Invariant: invariant, EventID: id, Says: says})
		}
	}
	for _, id := range h.Committed {
		if !there[id] {
			say("I1 no committed event lost", id, "was committed, and is gone")
		}
	}
	for _, id := range h.Failed {
		if there[id] {
			say("I2 no ghost", id, "its transaction failed, and it exists")
		}
	}
	for id, business := range h.Unknown {
		if business != there[id] {
			say("I3 unknown is consistent", id, fmt.Sprintf("its business row exists: %v, the event: %v", business, there[id]))
		}
	}
	return out, nil
}

// existing tells which events there are, or were before retention or DeleteSent.
func (c *checker) existing(ctx context.Context, ids []string) (map[string]bool, error) {
	there := make(map[string]bool, len(ids))
	for some := range slices.Chunk(ids, 500) {
		for _, table := range []view.Table{view.Events, view.EventsArchive, view.Deliveries} {
			found, err := view.Existing(ctx, c.sql, table, some)
			if err != nil {
				return nil, err
			}
			for _, id := range found {
				there[id] = true
			}
		}
	}
	return there, nil
}
