// Package budget says how many transactions the engine has open at a time: how many each consumer may have, and who waits where
// the pool has too few connections for all, or the database one writer.
package budget

import (
	"context"
	"math"

	"github.com/bluecone-go/bluecone/internal/handler"
)

const (
	// engineConns is how many connections of a bounded pool stay free for the publisher and the user.
	engineConns = 2
	// unboundedConns is how many transactions consumers have open at a time, if there are more consumers than that and the
	// pool has no limit: one event for all of them would make as many connections as there are consumers.
	unboundedConns = 64
)

// Transactions are those that a publisher and its lanes may have open. The zero value puts no limit on them. It is safe for
// concurrent use.
type Transactions struct {
	shares       map[string]int // by the keys of the consumers
	hasOneWriter bool

	tokens chan struct{} // one per transaction that may be open; nil means the consumers' own limits do
	line   chan struct{} // one token: its lane waits for one of the others
}

// New tells how many transactions each consumer may have open at a time: what it asked for,
// or its part of a pool that is too small for all, but at least one, so that a slow consumer
// never holds what another needs. Only if there are fewer connections than consumers do they
// have to take turns, by tokens.
func New(regs *handler.Registrations) *Transactions {
	b := &Transactions{shares: make(map[string]int, len(regs.Consumers)), hasOneWriter: regs.HasOneWriter(), line: make(chan struct{}, 1)}
	wanted := 0
	for _, c := range regs.Consumers {
		b.shares[c.Key] = c.Config.Concurrency
		wanted += c.Config.Concurrency
		if c.Config.Replayable {
			wanted++
		}
	}
	if b.hasOneWriter {
		b.tokens = make(chan struct{}, 1) // a second transaction would only wait inside the database
		return b
	}
	open := regs.DB.Stats().MaxOpenConnections
	if open == 0 && len(regs.Consumers) > unboundedConns {
		open = unboundedConns + engineConns
	}
	free := max(open-engineConns, 1)
	if open == 0 || wanted <= free {
		return b
	}
	for key, n := range b.shares {
		b.shares[key] = max(n*free/wanted, 1)
	}
	if len(regs.Consumers) <= free {
		regs.Logger.Info("consumers ask for more connections than the pool has; each gets its share", "wanted", wanted, "free", free,
			"maxOpenConns", open)
		return b
	}
	regs.Logger.Warn("there are more consumers than connections, so a slow consumer delays others: raise MaxOpenConns",
		"consumers", len(regs.Consumers), "free", free, "maxOpenConns", open)
	b.tokens = make(chan struct{}, free)
	return b
}

// Share is how many transactions the consumer of this key may have open at a time.
func (b *Transactions) Share(key string) int { return b.shares[key] }

// Most is how many transactions all may have open at a time.
func (b *Transactions) Most() int {
	if b.tokens == nil {
		return math.MaxInt
	}
	return cap(b.tokens)
}

// Acquire waits until a transaction may be open, and returns what to call when it is over, or an error if ctx ends before. Where there
// are connections enough, that is at once. On SQLite the engine's own writers take turns here:
// inside the database they would poll for the lock.
func (b *Transactions) Acquire(ctx context.Context) (over func(), err error) {
	return acquire(ctx, b.tokens)
}

// acquire takes one of the tokens that there are, all of which are there if tokens is nil.
func acquire(ctx context.Context, tokens chan struct{}) (giveBack func(), err error) {
	if tokens == nil {
		return func() {}, nil
	}
	select {
	case tokens <- struct{}{}:
		return func() { <-tokens }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// AcquireForLane is [Transactions.Acquire] for a lane. Lanes stand in a line of their own, of which one at a time waits with the engine's
// writers: behind thousands of lanes these would wait until their time is up.
func (b *Transactions) AcquireForLane(ctx context.Context) (over func(), err error) {
	if b.tokens == nil {
		return func() {}, nil
	}
	next, err := acquire(ctx, b.line)
	if err != nil {
		return nil, err
	}
	defer next()
	return b.Acquire(ctx)
}

// Write runs a short write of the engine's, on SQLite after those that came before. A caller who has one already would wait for
// itself.
func (b *Transactions) Write(ctx context.Context, write func() error) error {
	if b.hasOneWriter {
		over, err := b.Acquire(ctx)
		if err != nil {
			return err
		}
		defer over()
	}
	return write()
}
