package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/bluecone-go/bluecone/internal/handler"
)

// HandlerFunc is a handler of any kind as middleware sees it: one call about one message, or about all those of a batch handler
// ([OnBatch], [OnSQLBatch], [OnExternalBatch]). The messages have everything that the handler's own have; Payload is the value that
// it gets, so do not change what it refers to.
type HandlerFunc func(ctx context.Context, ms []Message[Event]) error

// Use puts middleware around every handler of the bus, whether it is registered before or after: [On], [OnBatch], [OnSQL],
// [OnSQLBatch], [OnExternal] and [OnExternalBatch]. What is used first is outermost: it is called first and sees the answer last.
//
// mw is called once, when the first event comes. The function that it returns is called in the handler's place, within its timeout,
// its transaction and its span; it calls next once, with ctx or a context made from it. Its answer counts as the handler's: an error
// is retried, [Permanent], [RetryAfter], [Unavailable] and [Skip] mean the same, a panic is an error. If it returns nil without having
// called next, the event counts as handled. A batch that fails is handled again one by one, middleware included.
//
// A mw that is nil, or that comes after a publisher has started, is a mistake that outbox.NewPublisher returns.
func (b *Bus) Use(mw func(next HandlerFunc) HandlerFunc) {
	b.all.Lock()
	defer b.all.Unlock()
	if b.isLate("bus.Use") {
		return
	}
	if mw == nil {
		b.refuse(errors.New("bus.Use: the middleware is nil: it is a function that returns a HandlerFunc which calls next"))
		return
	}
	if b.around = append(b.around, mw); len(b.around) == 1 {
		chain := sync.OnceValue(b.chain)
		b.all.Around = func(ctx context.Context, c *handler.Consumer, ms []*handler.Message, run func(context.Context) error) error {
			return chain()(context.WithValue(ctx, runKey{}, run), anyMessages(c, ms))
		}
	}
}

type runKey struct{}

// chain is all middleware, made once. The handler that it is around differs from call to call, so the context carries it.
func (b *Bus) chain() HandlerFunc {
	chain := func(ctx context.Context, _ []Message[Event]) error {
		run, ok := ctx.Value(runKey{}).(func(context.Context) error)
		if !ok {
			return errors.New("bus.Use: middleware called next with a context that was not made from the one it was handed, so the handler " +
				"cannot be found: pass that one on")
		}
		return run(ctx)
	}
	b.all.Lock()
	around := slices.Clone(b.around)
	b.all.Unlock() // middleware may ask the bus
	for i, mw := range slices.Backward(around) {
		next := mw(chain)
		if next == nil {
			err := fmt.Errorf("bus.Use: middleware number %d returned nil instead of a HandlerFunc", i+1)
			next = func(context.Context, []Message[Event]) error { return err }
		}
		chain = next
	}
	return chain
}

// anyMessages are messages whose payloads are known by their interface only.
func anyMessages(c *handler.Consumer, ms []*handler.Message) []Message[Event] {
	all := make([]Message[Event], len(ms))
	for i, m := range ms {
		payload, _ := reflect.TypeAssert[Event](reflect.ValueOf(m.Payload).Elem())
		all[i] = messageWith(c, m, payload)
	}
	return all
}
