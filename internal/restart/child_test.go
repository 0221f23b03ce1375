package restart_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

const (
	envDSN  = "BLUECONE_RESTART_DSN"
	envNode = "BLUECONE_RESTART_NODE"
)

// TestMain lets the test binary be an instance: a child that was started with envDSN set serves.
func TestMain(m *testing.M) {
	if os.Getenv(envDSN) == "" {
		testdb.Main(m)
		return
	}
	if err := serve(context.Background(), os.Getenv(envDSN), os.Getenv(envNode)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// The events of an aggregate, in order.
type (
	opened struct{ ID string }
	paid   struct{ ID string }
	closed struct{ ID string }
)

func (opened) EventType() string { return "turn.opened" }
func (paid) EventType() string   { return "turn.paid" }
func (closed) EventType() string { return "turn.closed" }

func (e opened) Aggregate() (kind, id string) { return "TURN", e.ID }
func (e paid) Aggregate() (kind, id string)   { return "TURN", e.ID }
func (e closed) Aggregate() (kind, id string) { return "TURN", e.ID }

func (e opened) IdempotencyKey() string { return e.ID + ":opened" }
func (e paid) IdempotencyKey() string   { return e.ID + ":paid" }
func (e closed) IdempotencyKey() string { return e.ID + ":closed" }

// steps are the transactions of an aggregate, each of which saves one event.
const steps = 3

func eventOf(id string, step int) bus.Event {
	return []bus.Event{opened{id}, paid{id}, closed{id}}[step]
}

func consumers() []string { return []string{"Wallet", "Points", "Coupon"} }

// instance is a process of the deployment.
type instance struct {
	db   *bun.DB
	d    dialect.Dialect
	ob   *outbox.Outbox
	name string
}

// serve saves events on request and delivers them, until somebody kills the process.
func serve(ctx context.Context, url, name string) error {
	db, err := testdb.Connect(url)
	if err != nil {
		return err
	}
	logger := slog.New(slog.DiscardHandler)
	if path := os.Getenv("BLUECONE_TEST_RESTART_LOG"); path != "" {
		file, err := os.OpenFile(path+"."+name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		logger = slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pid", os.Getpid())
	}
	i := &instance{db: db, name: name}
	if i.d, err = dialect.Of(db); err != nil {
		return err
	}
	if i.ob, err = outbox.New(db, outbox.Config{Instance: name, Logger: logger}); err != nil {
		return err
	}
	b := bus.New(db, bus.Config{Logger: logger})
	for _, consumer := range consumers() {
		i.follow(b.Consumer(consumer, bus.ConsumerConfig{}), consumer)
	}
	publisher, err := outbox.NewPublisher(i.ob, b, outbox.PublisherConfig{Lease: 5 * time.Second, Poll: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	return errors.Join(bus.Run(ctx, publisher, i), db.Close())
}

// Run serves over HTTP.
func (i *instance) Run(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, "listens on %s\n", l.Addr())
	server := &http.Server{Handler: http.HandlerFunc(i.answer), ReadHeaderTimeout: time.Second}
	return server.Serve(l)
}

func (i *instance) answer(w http.ResponseWriter, r *http.Request) {
	step, err := strconv.Atoi(r.FormValue("step"))
	if err == nil && (step < 0 || step >= steps) {
		err = errors.New("there is no such step")
	}
	if err == nil {
		err = i.save(r.Context(), r.FormValue("id"), step)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// save takes a step of an aggregate and saves its events. It does nothing if that has been done.
func (i *instance) save(ctx context.Context, id string, step int) error {
	return i.db.RunInTx(ctx, i.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		done := -1
		err := tx.QueryRowContext(ctx, "SELECT step FROM turn WHERE id = ?"+i.d.ForUpdate, id).Scan(&done)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			_, err = tx.ExecContext(ctx, "INSERT INTO turn (id, step) VALUES (?, 0)", id)
		case err == nil && done < step:
			_, err = tx.ExecContext(ctx, "UPDATE turn SET step = ? WHERE id = ?", step, id)
		case err == nil:
			return nil
		}
		if err != nil {
			return err
		}
		return i.ob.Save(ctx, tx, eventOf(id, step))
	})
}

func (i *instance) follow(c *bus.Consumer, consumer string) {
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[opened]) error {
		return i.note(ctx, tx, consumer, m.Payload.ID, 0)
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		return i.note(ctx, tx, consumer, m.Payload.ID, 1)
	})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[closed]) error {
		return i.note(ctx, tx, consumer, m.Payload.ID, 2)
	})
}

const (
	accounts = 200
	refusals = 20 // one delivery of so many is refused for a moment, so that it waits in the log, and others behind it
)

// note writes the effect of a delivery, and how many effects that must have come before it are not there. It locks
// an account that other aggregates have too, as a wallet would, and refuses now and then.
func (i *instance) note(ctx context.Context, tx bun.Tx, consumer, id string, step int) error {
	if rand.IntN(refusals) == 0 {
		return bus.RetryAfter(errors.New("not now"), 50*time.Millisecond)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	if _, err := tx.ExecContext(ctx, "UPDATE account SET moves = moves + 1 WHERE consumer = ? AND id = ?", consumer,
		h.Sum32()%accounts); err != nil {
		return err
	}
	before, err := i.before(ctx, tx, consumer, id, step)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO effect (consumer, id, step, missing, node, pid, noted_at) VALUES (?, ?, ?, ?, ?, ?, "+i.d.Now+
		")",
		consumer, id, step, step-before, i.name, os.Getpid())
	return err
}

func (i *instance) before(ctx context.Context, tx bun.Tx, consumer, id string, step int) (n int, err error) {
	err = tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM effect WHERE consumer = ? AND id = ? AND step < ?", consumer, id, step).Scan(&n)
	return n, err
}
