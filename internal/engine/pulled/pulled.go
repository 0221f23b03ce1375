// Package pulled runs the handlers of a bus on deliveries that another database holds, and that its service hands out by calls.
// What a handler with a transaction does happens once: its transaction writes a SUCCESS row into the consume log of this database
// first, so that a delivery which comes again, because nobody heard of its end, finds that it is done.
package pulled

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Consumer runs deliveries to one consumer. It is safe for concurrent use.
type Consumer struct {
	regs *handler.Registrations
	c    *handler.Consumer
	key  string // in this database's log
}

// Consumers are all of a bus, to which nothing can be registered any more.
func Consumers(b handler.Bus) []*Consumer {
	regs := handler.Of(b)
	regs.Close()
	var all []*Consumer
	for _, c := range regs.ByName() {
		all = append(all, &Consumer{regs: regs, c: c, key: store.PulledName(c.Key)})
	}
	return all
}

// Key is what the consumer is called in databases.
func (c *Consumer) Key() string { return c.c.Key }

// EventTypes lists what it handles.
func (c *Consumer) EventTypes() []string { return c.c.EventTypes() }

// Workers is how many batches may run side by side, and how many deliveries one may have.
func (c *Consumer) Workers() (batches, most int) {
	batches, most = c.c.Config.Concurrency, c.c.Config.Batch
	if c.regs.HasOneWriter() {
		batches = 1
	}
	return batches, most
}

// Rate is how many deliveries may start in a second, 0 for no limit.
func (c *Consumer) Rate() float64 { return c.c.Config.Rate }

// Check looks whether this database has the log, if a handler needs it.
func (c *Consumer) Check(ctx context.Context) error {
	if len(c.c.ExternalTypes()) == len(c.c.EventTypes()) {
		return nil
	}
	if err := text.Key("bus.Consumer: key of a consumer of a ledger", c.key, 128); err != nil {
		return err
	}
	if _, err := c.regs.Log.Done(ctx, c.regs.DB, c.key, []string{""}); err != nil {
		return fmt.Errorf("consumer %s needs the tables of bluecone in its own database: migrations.Up(ctx, db): %w", c.c.Name, err)
	}
	return nil
}

// Run runs deliveries, each of an aggregate of its own, and returns an answer for each. Those of handlers with a transaction share one;
// if it fails they are run in halves, so that only the one that is refused fails.
func (c *Consumer) Run(ctx context.Context, ms []*handler.Message) []Answer {
	answers := make([]Answer, len(ms))
	var together, outside []int
	for i, m := range ms {
		if err := c.c.Decode(m); err != nil {
			answers[i] = answerTo(ctx, handler.Permanent(err))
		} else if c.c.IsExternal(m.Event.Type) {
			outside = append(outside, i)
		} else {
			together = append(together, i)
		}
	}
	for len(outside) > 0 {
		var one, others []int
		for _, i := range outside {
			if len(one) == 0 || c.Joins(ms[one[0]], ms[i]) {
				one = append(one, i)
			} else {
				others = append(others, i)
			}
		}
		c.outside(ctx, ms, one, answers)
		outside = others
	}
	c.together(ctx, ms, together, answers)
	for i, m := range ms {
		c.count(ctx, m, answers[i])
	}
	return answers
}

// Joins reports whether one call or transaction takes both deliveries.
func (c *Consumer) Joins(one, other *handler.Message) bool {
	return c.c.Joins(one.Event.Type, other.Event.Type)
}

// outside runs the deliveries with these indexes, whose effects are not in this database, by one call.
func (c *Consumer) outside(ctx context.Context, ms []*handler.Message, of []int, answers []Answer) {
	batch := make([]*handler.Message, len(of))
	for n, i := range of {
		batch[n] = ms[i]
	}
	call, err := c.c.Prepare(batch)
	if err == nil {
		_, err = call.Run(ctx, handler.Transaction{})
	}
	for n, i := range of {
		if answer := handler.AnswerTo(err, n, len(of)); answer != nil {
			answers[i] = answerTo(ctx, answer)
		} else {
			answers[i] = succeeded(batch[n])
		}
	}
}

func succeeded(m *handler.Message) Answer {
	result, err := json.Marshal(m.Record.Result)
	if m.Record.Result == nil || err != nil {
		result = nil
	}
	return Answer{Outcome: Success, Result: result}
}

// together runs the deliveries with these indexes by one transaction, or else in halves.
func (c *Consumer) together(ctx context.Context, ms []*handler.Message, of []int, answers []Answer) {
	if len(of) == 0 {
		return
	}
	batch := make([]*handler.Message, len(of))
	for n, i := range of {
		batch[n] = ms[i]
	}
	done, err := c.transact(ctx, batch)
	if err != nil && len(of) > 1 {
		c.together(ctx, ms, of[:len(of)/2], answers)
		c.together(ctx, ms, of[len(of)/2:], answers)
		return
	}
	for n, i := range of {
		switch result, isDone := done[batch[n].Event.ID]; {
		case err != nil:
			answers[i] = answerTo(ctx, err)
		case isDone:
			answers[i] = Answer{Outcome: Success, Result: []byte(result), isRepeated: true}
		default:
			answers[i] = succeeded(batch[n])
		}
	}
}

// transact runs in one transaction what is not done yet, and returns what was, with its results.
func (c *Consumer) transact(ctx context.Context, ms []*handler.Message) (done map[string]string, err error) {
	done, err = c.regs.Log.Done(ctx, c.regs.DB, c.key, eventIDs(ms))
	if err != nil {
		return nil, &troubleError{err}
	}
	var open []*handler.Message
	for _, m := range ms {
		if _, ok := done[m.Event.ID]; !ok {
			open = append(open, m)
		}
	}
	if len(open) == 0 {
		return done, nil
	}
	d, err := dialect.Of(c.regs.DB)
	if err != nil {
		return nil, err
	}
	tx, fence, err := handler.Begin(ctx, c.regs.DB, d.ReadCommitted())
	if err != nil {
		return nil, &troubleError{err}
	}
	defer func() { fence.End(tx, err != nil, errors.Is(err, handler.ErrStuck)) }()
	if err = c.inside(ctx, tx, fence, open); err != nil {
		return nil, err
	}
	if err = inject.Call(c.regs.Faults.BeforeCommit, c.c.Name, eventIDs(open)); err != nil {
		return nil, &troubleError{err}
	}
	if err = tx.Commit(); err == nil {
		err = inject.Call(c.regs.Faults.AfterCommit, c.c.Name, eventIDs(open))
	}
	if err != nil { // another run asks the log whether it has happened
		return nil, &troubleError{fmt.Errorf("commit: %w", err)}
	}
	return done, nil
}

// inside marks, handles and records.
func (c *Consumer) inside(ctx context.Context, tx bun.Tx, fence *handler.Fence, ms []*handler.Message) error {
	rows := make([]store.Delivery, len(ms))
	for i, m := range ms {
		e := m.Event
		rows[i] = store.Delivery{
			Consumer: c.key, EventID: e.ID, EventType: e.Type, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
			TenantID: e.TenantID, Attempts: m.Attempt,
		}
	}
	if err := c.regs.Log.MarkPulled(ctx, tx, rows); err != nil {
		return &troubleError{err}
	}
	call, err := c.c.Prepare(ms)
	if err != nil {
		return err
	}
	_, err = call.Run(ctx, fence.Transaction(tx, c.regs.Log.Statements(), len(ms)))
	if err == nil && fence.Poisoned() == nil {
		err = c.record(ctx, tx, ms)
	}
	switch p := fence.Poisoned(); {
	case errors.Is(p, handler.ErrEnds) || errors.Is(p, handler.ErrNotAlone):
		return errors.Join(p, err)
	case p != nil:
		return &troubleError{errors.Join(p, err)}
	case dialect.Classify(err) == dialect.TxRetry:
		return &troubleError{err}
	}
	return err
}

// record stores what handlers recorded, and is the last look whether the marks are still there.
func (c *Consumer) record(ctx context.Context, tx bun.Tx, ms []*handler.Message) error {
	var notes []store.Note
	for _, m := range ms {
		if m.Record != (handler.Record{}) {
			notes = append(notes, store.Note{EventID: m.Event.ID, IdempotencyKey: m.Record.Key, Result: m.Record.Result})
		}
	}
	if err := c.regs.Log.Annotate(ctx, tx, c.key, notes); err != nil {
		return handler.Unusable(ctx, err)
	}
	there, err := c.regs.Log.Marked(ctx, tx, c.key, eventIDs(ms))
	if err != nil {
		return handler.Unusable(ctx, err)
	}
	if !there {
		return &troubleError{errors.New("the handler's transaction has ended before the engine could commit it")}
	}
	return nil
}

func eventIDs(ms []*handler.Message) []string {
	ids := make([]string, len(ms))
	for i, m := range ms {
		ids[i] = m.Event.ID
	}
	return ids
}
