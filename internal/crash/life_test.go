package crash_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// paid is event number Seq of an order.
type paid struct {
	Order string `json:"order"`
	Seq   int    `json:"seq"`
}

func (paid) EventType() string              { return "order.paid" }
func (p paid) Aggregate() (kind, id string) { return "ORDER", p.Order }
func (p paid) IdempotencyKey() string       { return fmt.Sprintf("%s:%d", p.Order, p.Seq) }
func (p paid) id() string                   { return outbox.EventID(0, p.EventType(), p.IdempotencyKey()) }

const (
	orders = 3
	saved  = 6 // events of a life, one transaction each
	failed = 1 // the one whose first attempt fails
	dead   = 3 // the one that is refused for good, and skipped by an operator
	lost   = 6 // the one whose producer forgot to save it
)

func numbered(seq int) paid {
	if seq == lost { // of an order of its own: nobody can save it before the order's others
		return paid{"lost", seq}
	}
	return paid{strconv.Itoa(seq % orders), seq}
}

// instance is a process of the deployment: everything that can be at work on the database.
type instance struct {
	db          *bun.DB
	d           dialect.Dialect
	ob          *outbox.Outbox
	publisher   *outbox.Publisher
	reaper      *reaper.Reaper
	consistency *consistency.Consistency
	retention   *outbox.Retention
	handled     func() // called by handlers; may be nil
}

func newInstance(db *bun.DB) (i *instance, err error) {
	i = &instance{db: db}
	quiet := slog.New(slog.DiscardHandler)
	if i.d, err = dialect.Of(db); err != nil {
		return nil, err
	}
	if i.ob, err = outbox.New(db, outbox.Config{Logger: quiet}); err != nil {
		return nil, err
	}
	b := bus.New(db, bus.Config{Logger: quiet})
	bus.On(b.Consumer("Wallet", bus.ConsumerConfig{Batch: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		return i.note(ctx, tx, m)
	})
	bus.On(b.Consumer("Points", bus.ConsumerConfig{Batch: 2}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		if m.Payload.Seq == failed && m.Attempt == 1 {
			return errors.New("not at the first attempt")
		}
		if m.Payload.Seq == dead {
			return bus.Permanent(errors.New("never"))
		}
		return i.note(ctx, tx, m)
	})
	bus.OnExternal(b.Consumer("Mail", bus.ConsumerConfig{}), func(ctx context.Context, m bus.Message[paid]) error { return i.mail(ctx, m) })
	if i.publisher, err = outbox.NewPublisher(i.ob, b, outbox.PublisherConfig{}); err != nil {
		return nil, err
	}
	return i, i.jobs(quiet)
}

func (i *instance) jobs(quiet *slog.Logger) (err error) {
	if i.reaper, err = reaper.New(i.db, i.ob, reaper.Config{Logger: quiet}, reaper.Task{
		Name: "crash.freeze", Owner: &reaper.Owner{Guard: lockReservation}, Consumer: "Wallet", TTL: time.Hour, Find: findLocks,
		Release: releaseLock,
	}); err != nil {
		return err
	}
	forgotten := consistency.Check[string]{
		Name: "order.paid", Find: i.findPaid, Key: func(seq string) string { return seq },
		Missing: func(ctx context.Context, db bun.IDB, seqs []string) ([]string, error) {
			ids := make([]string, len(seqs))
			for k, seq := range seqs {
				n, _ := strconv.Atoi(seq)
				ids[k] = numbered(n).id()
			}
			missing, err := i.ob.Missing(ctx, db, ids)
			var out []string
			for k, id := range ids {
				for _, m := range missing {
					if m == id {
						out = append(out, seqs[k])
					}
				}
			}
			return out, err
		},
		Repair: func(ctx context.Context, tx bun.Tx, seq string) (bool, error) {
			n, err := strconv.Atoi(seq)
			if err != nil {
				return false, err
			}
			return true, i.ob.Save(ctx, tx, numbered(n))
		},
	}
	if i.consistency, err = consistency.New(i.db, consistency.Config{Logger: quiet, Grace: time.Microsecond}, forgotten); err != nil {
		return err
	}
	i.retention, err = outbox.NewRetention(i.ob, outbox.RetentionConfig{Keep: time.Minute, Archive: true, Batch: 2})
	return err
}

// note is a handler: its effect goes through its transaction.
func (i *instance) note(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
	if i.handled != nil {
		i.handled()
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
		m.AggregateID, m.Payload.Seq)
	return err
}

// mail calls a service that knows idempotency keys.
func (i *instance) mail(ctx context.Context, m bus.Message[paid]) error {
	_, err := i.db.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) SELECT 'Mail', ?, ?, ? "+
		"FROM (SELECT 1 AS one) AS o WHERE NOT EXISTS (SELECT 1 FROM effect e WHERE e.consumer = 'Mail' AND e.event_id = ?)",
		m.ID, m.AggregateID, m.Payload.Seq, m.ID)
	return err
}

func findLocks(ctx context.Context, db bun.IDB, q reaper.Query) ([]reaper.Lock, error) {
	var ids []string
	err := db.NewRaw("SELECT id FROM reservation WHERE state = 'FROZEN' AND id > ? ORDER BY id LIMIT ?", q.After, q.Limit).Scan(ctx, &ids)
	locks := make([]reaper.Lock, len(ids))
	for k, id := range ids {
		locks[k] = reaper.Lock{ID: id, AggregateType: "FREEZE", AggregateID: id, Age: 2 * time.Hour}
	}
	return locks, err
}

// lockReservation is the guard of a reservation, which belongs to nobody else.
func lockReservation(ctx context.Context, tx bun.Tx, a reaper.Aggregate) (bool, error) {
	var state string
	err := tx.QueryRowContext(ctx, "SELECT state FROM reservation WHERE id = ? FOR UPDATE", a.ID).Scan(&state)
	return state == "FROZEN", err
}

// releaseLock gives the money back, which must not happen twice.
func releaseLock(ctx context.Context, tx bun.Tx, l reaper.Lock) (bool, error) {
	res, err := tx.ExecContext(ctx, "UPDATE reservation SET state = 'RELEASED', releases = releases + 1 WHERE id = ? "+
		"AND state = 'FROZEN'", l.ID)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (i *instance) findPaid(ctx context.Context, db bun.IDB, q consistency.Query) (seqs []string, err error) {
	err = db.NewRaw("SELECT seq FROM business WHERE seq > ? ORDER BY seq LIMIT ?", q.After, q.Limit).Scan(ctx, &seqs)
	return seqs, err
}

// tables makes what the modules of the host would have.
func tables(ctx context.Context, db *bun.DB) error {
	id := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "pg": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	}[db.Dialect().Name().String()]
	for _, q := range []string{
		"CREATE TABLE effect (id " + id + ", consumer VARCHAR(128) NOT NULL, event_id VARCHAR(64) NOT NULL, aggregate VARCHAR(128) NOT NULL, " +
			"seq INT NOT NULL)",
		"CREATE TABLE business (seq VARCHAR(8) NOT NULL PRIMARY KEY, event_id VARCHAR(64) NOT NULL)",
		"CREATE TABLE reservation (id VARCHAR(8) NOT NULL PRIMARY KEY, state VARCHAR(16) NOT NULL, releases INT NOT NULL)",
		"INSERT INTO reservation VALUES ('1', 'FROZEN', 0), ('2', 'FROZEN', 0)",
		"INSERT INTO business VALUES ('" + strconv.Itoa(lost) + "', '" + numbered(lost).id() + "')",
	} {
		if _, err := db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// live is everything that a process does in its life. An error ends nothing: the next thing is tried,
// as in a server, and said is what the producer knows to be committed.
func live(ctx context.Context, db *bun.DB, say func(eventID string)) error {
	errs := []error{migrations.Up(ctx, db)}
	i, err := newInstance(db)
	if err != nil {
		return err
	}
	for seq := range saved {
		err := i.produce(ctx, numbered(seq))
		if err == nil {
			say(numbered(seq).id())
		}
		errs = append(errs, err)
	}
	errs = append(errs, i.drain(ctx), i.retry(ctx), i.operate(ctx))
	_, err = i.reaper.RunOnce(ctx)
	errs = append(errs, err)
	_, err = i.consistency.RunOnce(ctx)
	errs = append(errs, err, i.retry(ctx), i.ob.Sweep(ctx), i.age(ctx))
	_, err = i.retention.RunOnce(ctx)
	return errors.Join(append(errs, err)...)
}

// produce saves a business row and its event.
func (i *instance) produce(ctx context.Context, e paid) error {
	return i.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO business (seq, event_id) VALUES (?, ?)", strconv.Itoa(e.Seq), e.id()); err != nil {
			return err
		}
		return i.ob.Save(ctx, tx, e)
	})
}

// drain publishes until the first handler runs, and stops then: what is left is given back.
func (i *instance) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var once atomic.Bool
	i.handled = func() {
		if once.CompareAndSwap(false, true) {
			cancel()
		}
	}
	defer func() { i.handled = nil }()
	return i.publisher.Run(ctx)
}

// retry publishes until the retries have been made.
func (i *instance) retry(ctx context.Context) error {
	var errs []error
	for range 3 {
		errs = append(errs, i.expire(ctx))
		_, err := i.publisher.RunOnce(ctx)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// expire makes every lease and every backoff run out.
func (i *instance) expire(ctx context.Context) error {
	past := map[string]string{"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 SECOND", "postgres": "now() - interval '1 second'"}[i.d.Name]
	for _, q := range []string{
		"UPDATE bc_outbox_event SET next_retry_at = " + past + " WHERE status IN ('SCHEDULED', 'DISPATCHING')",
		"UPDATE bc_event_consume_log SET next_retry_at = " + past + " WHERE status IN ('PENDING', 'FAILED', 'PROCESSING')",
		"UPDATE bc_job_lease SET locked_until = " + past + " WHERE locked_until IS NOT NULL",
	} {
		if _, err := i.db.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// age lets an hour pass for what has been delivered.
func (i *instance) age(ctx context.Context) error {
	past := map[string]string{"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "postgres": "now() - interval '1 hour'"}[i.d.Name]
	_, err := i.db.ExecContext(ctx, "UPDATE bc_outbox_event SET created_at = "+past+", sent_at = "+past+" WHERE status = 'SENT'")
	return err
}

// operate is a person who looks after dead letters.
func (i *instance) operate(ctx context.Context) error {
	records, err := i.ob.Log().ByEvents(ctx, numbered(dead).id())
	if err != nil {
		return err
	}
	for _, r := range records {
		if r.Status != consumelog.Dead {
			continue
		}
		if err := i.ob.Skip(ctx, outbox.Operation{Actor: "ann", Reason: "it was refused"}, r.EventID, r.Consumer); err != nil &&
			!errors.Is(err, outbox.ErrNotFound) {
			return err
		}
	}
	return nil
}
