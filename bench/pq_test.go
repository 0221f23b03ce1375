package main

import (
	"context"
	"database/sql"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type pqEvent struct{ Key string }

func (pqEvent) EventType() string              { return "pq.event" }
func (e pqEvent) Aggregate() (kind, id string) { return "PQ", "1" }
func (e pqEvent) IdempotencyKey() string       { return e.Key }

// The library works with lib/pq, which this module has because watermill brings it: Open, Save in its transactions, delivery by
// handlers of both kinds. It cannot hand on notifications: Notify has no effect then.
func TestLibPQ(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
	defer cancel()
	pool, err := sql.Open("postgres", testdb.DSN(t, "postgres"))
	check(t, err)
	defer pool.Close()
	db, err := outbox.Open(ctx, pool)
	check(t, err)
	check(t, migrations.Up(ctx, db))
	ob, err := outbox.New(db, outbox.Config{})
	check(t, err)
	b := bus.New(db, bus.Config{})
	bus.OnSQL(b.Consumer("A", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[pqEvent]) error {
		_, err := tx.ExecContext(ctx, "SELECT $1::text", m.Payload.Key)
		return err
	})
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{Notify: true})
	check(t, err)
	save := func(end func(*sql.Tx) error, events ...bus.Event) {
		t.Helper()
		tx, err := pool.BeginTx(ctx, nil)
		check(t, err)
		check(t, ob.Save(ctx, tx, events...))
		check(t, end(tx))
	}
	one, two := pqEvent{"it's $1 \\ ?"}, outbox.With(pqEvent{}, outbox.Tenant(7, 0), outbox.DeliverAt(time.Now().Add(time.Hour)))
	save((*sql.Tx).Rollback, one, two)
	save((*sql.Tx).Commit, one, two, pqEvent{})
	save((*sql.Tx).Commit, one)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- pub.Run(running) }()
	for sent := int64(0); sent != 2; { // "it's" once, and the one without a key
		counts, err := ob.Counts(ctx) // fails when ctx has ended
		check(t, err)
		sent = counts[outbox.StatusSent]
		<-time.After(5 * time.Millisecond)
	}
	stop()
	check(t, <-ended)
	counts, err := ob.Counts(ctx)
	check(t, err)
	if counts[outbox.StatusScheduled] != 1 || counts[outbox.StatusNew] != 0 {
		t.Fatal(counts)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
