// Package remote leases deliveries to handlers that run in another program: it takes them by a call, and ends them by another.
// What such a consumer is to have stands in the consume log already: publishers put it there for every consumer of the registry
// that they cannot call.
package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Errors of a call.
var (
	// ErrUnknown means that there is no such event or delivery.
	ErrUnknown = errors.New("there is no such event")
	// ErrDead means that the delivery waits for an operator.
	ErrDead = errors.New("the delivery is DEAD: an operator has to retry or to skip it")
	// ErrLost means that the lease has passed to somebody else, or has been ended in another way: nothing was changed.
	ErrLost = errors.New("the lease of the delivery is lost")
)

// Config says how deliveries are leased.
type Config struct {
	Lease       time.Duration // how long a lease lasts unless it is renewed
	MaxAttempts int           // after so many failed attempts a delivery is DEAD
	Backoff     func(attempt int) time.Duration
}

// Deliveries leases those of consumers in other programs. It is safe for concurrent use.
type Deliveries struct {
	cfg Config
	roomsOf

	mu        sync.Mutex
	announced map[string]time.Time // when a consumer last was
	late      map[string]late      // by consumer
}

// roomsOf are the statements of a database and the rooms that it needs.
type roomsOf struct {
	db       *bun.DB
	d        dialect.Dialect
	stmts    *prepared.Statements
	log      store.Log
	rows     store.Remote
	registry store.Registry
	events   store.Settling
	settler  *settle.Settler
	meter    *settle.Meter
	logger   *slog.Logger
}

// New returns the deliveries of a database. The settler and the meter are those of its outbox.
func New(db *bun.DB, settler *settle.Settler, meter *settle.Meter, logger *slog.Logger, cfg Config) (*Deliveries, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	log, err := store.OpenLog(db)
	if err != nil {
		return nil, err
	}
	stmts := log.Statements()
	return &Deliveries{cfg: cfg, announced: make(map[string]time.Time), late: make(map[string]late), roomsOf: roomsOf{
		db: db, d: d, stmts: stmts, log: log, rows: store.Remote{Leases: log.Leases}, registry: store.NewRegistry(d, stmts),
		events: store.NewSettling(d, stmts), settler: settler, meter: meter, logger: logger,
	}}, nil
}

func (r *roomsOf) inTx(ctx context.Context, fn func(ctx context.Context, tx bun.Tx) error) error {
	return store.InTx(ctx, r.db, r.d, r.stmts, fn)
}

// Lease is the right to end a delivery. Its owner has a random part, which stands in the row, so that nobody can guess it.
type Lease struct {
	Row     int64 // id of the row in the log
	Version int64
	Owner   string
}

func (l Lease) pair() dialect.Pair { return dialect.Pair{ID: l.Row, Version: l.Version} }

// newOwner is an owner of leases that nobody can guess. It fits into locked_by.
func newOwner() string { return "remote#" + rand.Text() }

// gate is what a consumer asks before it gets deliveries.
func gate(consumer, owner string, types []string) store.Gate {
	return store.Gate{Consumer: consumer, Types: types, Ordered: true, Owner: owner, Marked: true}
}

// until is the end of a lease that begins at a moment.
func (r *Deliveries) until(now int64) time.Time {
	return time.UnixMicro(now + dialect.Micro(r.cfg.Lease)).UTC()
}

// usedUp is the verdict on a delivery that may not be tried any more.
func (r *Deliveries) usedUp() store.Verdict {
	return store.Verdict{
		Status: store.Dead, Counts: true,
		Error: fmt.Sprintf("all %d attempts are used up, the last of them ended without an answer", r.cfg.MaxAttempts),
	}
}
