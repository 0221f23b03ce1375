package reaper_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// orderPaid settles the seats of an order, orderGivenUp says that they are free.
type (
	orderPaid    struct{ ID string }
	orderGivenUp struct{ ID string }
)

func (orderPaid) EventType() string                 { return "order.paid" }
func (e orderPaid) Aggregate() (kind, id string)    { return "ORDER", e.ID }
func (orderGivenUp) EventType() string              { return "order.given_up" }
func (e orderGivenUp) Aggregate() (kind, id string) { return "ORDER", e.ID }

// theater has orders with seats, the real outbox, and two consumers of what is paid.
type theater struct {
	t  *testing.T
	db *bun.DB
	d  dialect.Dialect
	ob *outbox.Outbox
	p  *outbox.Publisher

	failing  map[string]error // by consumer
	question func()           // runs after the reaper has asked about events
}

func newTheater(t *testing.T, db *bun.DB) *theater {
	t.Helper()
	h := &theater{t: t, db: db, failing: make(map[string]error)}
	var err error
	h.d, err = dialect.Of(db)
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	h.ob, err = outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	b := bus.New(db, bus.Config{Logger: quiet})
	for _, name := range []string{"Seats", "Mail"} {
		c := b.Consumer(name, bus.ConsumerConfig{MaxAttempts: 100})
		bus.On(c, func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return h.failing[name] })
		bus.On(c, func(context.Context, bun.Tx, bus.Message[orderGivenUp]) error { return nil })
	}
	h.p, err = outbox.NewPublisher(h.ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	h.exec("CREATE TABLE orders (id VARCHAR(32) PRIMARY KEY, status VARCHAR(16) NOT NULL)")
	h.exec("CREATE TABLE seat (id VARCHAR(32) PRIMARY KEY, tenant INT NOT NULL, order_id VARCHAR(32) NOT NULL, status VARCHAR(16) NOT NULL)")
	return h
}

func (h *theater) exec(query string, args ...any) {
	h.t.Helper()
	_, err := h.db.ExecContext(context.Background(), query, args...)
	require.NoError(h.t, err)
}

func (h *theater) text(query string, args ...any) (s string) {
	h.t.Helper()
	require.NoError(h.t, h.db.QueryRowContext(context.Background(), query, args...).Scan(&s))
	return s
}

// order adds an order of a tenant with a seat that has been held for long.
func (h *theater) order(id string, tenant int) {
	h.t.Helper()
	h.exec("INSERT INTO orders (id, status) VALUES (?, 'OPEN')", id)
	h.exec("INSERT INTO seat (id, tenant, order_id, status) VALUES (?, ?, ?, 'FROZEN')", "seat-"+id, tenant, id)
}

var errTooLate = errors.New("the order is given up")

// pay is the payment of an order: its row is locked, and its event saved, in one transaction.
func (h *theater) pay(id string, opts ...outbox.Option) error {
	return h.db.RunInTx(context.Background(), h.d.ReadCommitted(), func(ctx context.Context, tx bun.Tx) error {
		if open, err := h.isOpen(ctx, tx, id); err != nil || !open {
			return errors.Join(err, errTooLate)
		}
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'PAID' WHERE id = ?", id); err != nil {
			return err
		}
		return h.ob.Save(ctx, tx, outbox.With(orderPaid{id}, opts...))
	})
}

func (h *theater) isOpen(ctx context.Context, tx bun.Tx, id string) (bool, error) {
	var status string
	err := tx.QueryRowContext(ctx, "SELECT status FROM orders WHERE id = ?"+h.d.ForUpdate, id).Scan(&status)
	return status == "OPEN", err
}

// OpenEvents asks the outbox, and lets the test do something after the answer.
func (h *theater) OpenEvents(ctx context.Context, idb bun.IDB, tenantID int64, kind, id, consumer string) (waiting, dead int, err error) {
	waiting, dead, err = h.ob.OpenEvents(ctx, idb, tenantID, kind, id, consumer)
	if h.question != nil {
		h.question()
	}
	return waiting, dead, err
}

func (h *theater) task(guard func(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error)) reaper.Task {
	return reaper.Task{
		Name: "seat.hold", Consumer: "Seats",
		Owner: &reaper.Owner{Guard: guard, Released: func(ctx context.Context, tx bun.Tx, a reaper.Aggregate) error {
			if _, err := tx.ExecContext(ctx, "UPDATE orders SET status = 'GIVEN_UP' WHERE id = ?", a.ID); err != nil {
				return err
			}
			return h.ob.Save(ctx, tx, outbox.With(orderGivenUp{a.ID}, outbox.Tenant(a.TenantID, 0)))
		}},
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) (found []reaper.Lock, err error) {
			var rows []struct {
				ID      string
				Tenant  int64
				OrderID string
			}
			err = db.NewRaw("SELECT id, tenant, order_id FROM seat WHERE status = 'FROZEN' AND id > ? ORDER BY id LIMIT ?", q.After,
				q.Limit).Scan(ctx, &rows)
			for _, r := range rows {
				found = append(found, reaper.Lock{ID: r.ID, TenantID: r.Tenant, AggregateType: "ORDER", AggregateID: r.OrderID, Age: time.Hour})
			}
			return found, err
		},
		Release: func(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
			res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'RELEASED' WHERE id = ? AND status = 'FROZEN'", l.ID)
			if err != nil {
				return false, err
			}
			n, err := res.RowsAffected()
			return n == 1, err
		},
	}
}

func (h *theater) reap(guard func(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error)) reaper.Report {
	h.t.Helper()
	r, err := reaper.New(h.db, h, reaper.Config{Logger: slog.New(slog.DiscardHandler)}, h.task(guard))
	require.NoError(h.t, err)
	report, err := r.RunOnce(h.t.Context())
	require.NoError(h.t, err)
	return report
}

// locking is the guard of a real owner.
func (h *theater) locking(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
	return h.isOpen(ctx, tx, a.ID)
}

// trusting is a guard that lets everything go, so that only events hold locks.
func (h *theater) trusting(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }

// A payment that comes after the reaper has asked about events, and before it has released, waits for the release and is
// refused. It never commits in between.
func TestNoEventCommitsBetweenTheQuestionAndTheRelease(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h, paid := newTheater(t, db), make(chan error, 1)
		h.order("1", 0)
		h.question = func() {
			h.question = nil
			go func() { paid <- h.pay("1") }()
			select { // without the guard's lock it commits at once
			case err := <-paid:
				paid <- err
			case <-time.After(500 * time.Millisecond):
			}
		}
		report := h.reap(h.locking)
		require.ErrorIs(t, <-paid, errTooLate, "the payment was committed although the seat is gone")
		require.Equal(t, reaper.Report{Expired: 1, Released: 1}, report)
		require.Equal(t, "GIVEN_UP", h.text("SELECT status FROM orders"))
		require.Equal(t, "order.given_up", h.text("SELECT event_type FROM bc_outbox_event"))
	})
}

// A payment that has committed before keeps the seat, whether its event is delivered or not.
func TestPaidOrderKeepsItsLock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newTheater(t, db)
		h.order("1", 0)
		require.NoError(t, h.pay("1"))
		require.Equal(t, reaper.Report{Expired: 1, Kept: 1}, h.reap(h.locking))
		require.Equal(t, "FROZEN", h.text("SELECT status FROM seat"))
		require.Equal(t, reaper.Report{Expired: 1, Held: 1}, h.reap(h.trusting), "its event is not fanned out yet")
	})
}

// Only the consumer that settles the lock holds it by a delivery that is unfinished.
func TestOnlyItsOwnConsumerHoldsALock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for consumer, want := range map[string]reaper.Report{"Seats": {Expired: 1, Held: 1}, "Mail": {Expired: 1, Released: 1}} {
			h := newTheater(t, testdb.Open(t, testdb.Server(t, db)))
			h.order("1", 0)
			require.NoError(t, h.pay("1"))
			h.failing[consumer] = errors.New("not today")
			_, err := h.p.RunOnce(t.Context())
			require.NoError(t, err)
			require.Equal(t, consumer+" FAILED", h.text("SELECT CONCAT(consumer_name, ' ', status) FROM bc_event_consume_log "+
				"WHERE status <> 'SUCCESS'"))
			require.Equal(t, want, h.reap(h.trusting), consumer)
		}
	})
}

// A consumer that is at work with the event of a payment holds its own locks of the order, and those of no other consumer.
func TestSlowConsumerHoldsNoOthersLock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newTheater(t, db)
		inside, goOn := make(chan struct{}), make(chan struct{})
		quiet := slog.New(slog.DiscardHandler)
		b := bus.New(db, bus.Config{Logger: quiet})
		bus.On(b.Consumer("Seats", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[orderPaid]) error { return nil })
		bus.OnExternal(b.Consumer("Slow", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error {
			close(inside)
			<-goOn
			return nil
		})
		p, err := outbox.NewPublisher(h.ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		h.order("1", 0)
		require.NoError(t, h.pay("1"))
		<-inside
		waiting := func(consumer string) (n int) {
			n, _, err := h.ob.OpenEvents(t.Context(), db, 0, "ORDER", "1", consumer)
			require.NoError(t, err)
			return n
		}
		testdb.Eventually(t, func() bool {
			return h.text("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = 'Seats' AND status = 'SUCCESS'") == "1"
		}, "Seats has had the event")
		require.Equal(t, "DISPATCHING", h.text("SELECT status FROM bc_outbox_event"))
		require.Equal(t, 1, waiting("Slow"))
		require.Zero(t, waiting("Seats"))
		require.Equal(t, reaper.Report{Expired: 1, Released: 1}, h.reap(h.trusting))
		close(goOn)
		stop()
		require.NoError(t, <-done)
	})
}

// A DEAD delivery of another consumer does not hold the lock, one of its own does until somebody decides.
func TestOnlyItsOwnDeadDeliveryHoldsALock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		for consumer, want := range map[string]reaper.Report{"Seats": {Expired: 1, Dead: 1}, "Mail": {Expired: 1, Released: 1}} {
			h := newTheater(t, testdb.Open(t, testdb.Server(t, db)))
			h.order("1", 0)
			require.NoError(t, h.pay("1"))
			h.failing[consumer] = bus.Permanent(errors.New("never"))
			_, err := h.p.RunOnce(t.Context())
			require.NoError(t, err)
			require.Equal(t, want, h.reap(h.trusting), consumer)
		}
	})
}

// Two tenants may have an order of the same number: the events of one do not hold the locks of the other.
func TestOtherTenantsEventsHoldNoLock(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h := newTheater(t, db)
		h.order("1", 1)
		h.exec("INSERT INTO seat (id, tenant, order_id, status) VALUES ('seat-of-2', 2, '1', 'FROZEN'), ('seat-of-nobody', 0, '1', 'FROZEN')")
		require.NoError(t, h.pay("1", outbox.Tenant(1, 0)))
		h.exec("UPDATE orders SET status = 'OPEN'") // it is the other tenants' too here
		require.Equal(t, reaper.Report{Expired: 3, Held: 1, Released: 2}, h.reap(h.trusting))
		require.Equal(t, "seat-1", h.text("SELECT id FROM seat WHERE status = 'FROZEN'"))
	})
}

// Locks that have one owner go together, in the transaction in which the owner is told, but for those that something holds.
func TestLocksOfAnOwnerGoTogether(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		l := newLocks(t, db)
		l.hold("expired", "1", 31)
		l.hold("young", "1", 1)
		l.hold("somebody-elses", "2", 1)
		owner := l.owner()
		told := 0
		owner.Released = func(context.Context, bun.Tx, reaper.Aggregate) error { told++; return nil }
		task := l.task()
		task.Owner = owner
		task.Of = func(ctx context.Context, idb bun.IDB, a reaper.Aggregate) (found []reaper.Lock, err error) {
			var ids []string
			err = idb.NewRaw("SELECT id FROM seat WHERE order_id = ? AND status = 'FROZEN'", a.ID).Scan(ctx, &ids)
			for _, id := range ids {
				found = append(found, reaper.Lock{ID: id, AggregateType: a.Type, AggregateID: a.ID})
			}
			return found, err
		}
		report, err := newReaper(t, db, reaper.Config{}, task).RunOnce(t.Context())
		require.NoError(t, err)
		require.Equal(t, reaper.Report{Expired: 1, Released: 2}, report)
		require.Equal(t, 1, told)
		require.Equal(t, "FROZEN", l.status("somebody-elses"))

		l.hold("late", "3", 31)
		owner.Released = func(context.Context, bun.Tx, reaper.Aggregate) error { return errors.New("the owner refuses") }
		report, err = newReaper(t, db, reaper.Config{}, task).RunOnce(t.Context())
		require.ErrorContains(t, err, "the owner refuses")
		require.Equal(t, reaper.Report{Expired: 1, Failed: 1}, report)
		require.Equal(t, "FROZEN", l.status("late"), "nothing is released without its owner")
	})
}
