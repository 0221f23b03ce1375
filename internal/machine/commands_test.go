package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
)

// commands are all that may happen.
func (m *machine) commands() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"": func(*rapid.T) { m.check(false) },
		"save": func(rt *rapid.T) {
			m.save(m.any(rt), draft{
				tenant: rapid.Int64Range(0, 1).Draw(rt, "tenant"), aggregate: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "aggregate"),
				isNew: rapid.Bool().Draw(rt, "of a type that only the newer release takes"), n: rapid.IntRange(1, 3).Draw(rt, "events"),
			})
		},
		"save keyed":   func(rt *rapid.T) { m.saveKeyed(m.any(rt), m.key(rt)) },
		"save delayed": func(rt *rapid.T) { m.saveDelayed(m.any(rt)) },
		"roll back":    func(rt *rapid.T) { m.rollBack(m.any(rt)) },
		"lose event":   func(rt *rapid.T) { m.loseEvent(m.key(rt)) },
		"deliver":      func(rt *rapid.T) { m.deliver(m.any(rt)) },
		"answer": func(rt *rapid.T) {
			m.answers[m.consumer(rt)] = rapid.SampledFrom([]string{"", "fail", "permanent", "panic", "later"}).Draw(rt, "answer")
		},
		"time passes":   func(*rapid.T) { m.timePasses() },
		"die":           func(rt *rapid.T) { m.die(rt) },
		"leases expire": func(*rapid.T) { m.leasesExpire() },
		"retry":         func(rt *rapid.T) { m.operate(rt, "retry") },
		"retry all":     func(rt *rapid.T) { m.operate(rt, "retry all") },
		"skip":          func(rt *rapid.T) { m.operate(rt, "skip") },
		"replay":        func(rt *rapid.T) { m.replay(rt) },
		"mark dead":     func(rt *rapid.T) { m.operate(rt, "mark dead") },
		"pause":         func(rt *rapid.T) { m.must(m.instances[0].ob.Pause(context.Background(), op, m.consumer(rt), 0)) },
		"resume":        func(rt *rapid.T) { m.must(m.instances[0].ob.Resume(context.Background(), op, m.consumer(rt))) },
		"ghost appears": func(*rapid.T) { m.ghostAppears() },
		"retire ghost":  func(*rapid.T) { m.retireGhost() },
		"reaper":        func(*rapid.T) { m.reap() },
		"retention":     func(*rapid.T) { m.retain() },
		"consistency":   func(*rapid.T) { m.backfill() },
		"sweep":         func(rt *rapid.T) { m.must(m.any(rt).ob.Sweep(context.Background())) },
	}
}

func (m *machine) any(rt *rapid.T) *instance {
	return m.instances[rapid.IntRange(0, len(m.instances)-1).Draw(rt, "instance")]
}

func (m *machine) consumer(rt *rapid.T) string {
	return rapid.SampledFrom(consumers).Draw(rt, "consumer")
}

func (m *machine) key(rt *rapid.T) string {
	return fmt.Sprint("key-", rapid.IntRange(1, 3).Draw(rt, "key"))
}

func (m *machine) idOf(key string) string { return outbox.EventID(0, done{}.EventType(), key) }

func (m *machine) must(err error) { require.NoError(m.rt, err) }

// inTx runs a producer's transaction and takes over what it has saved.
func (m *machine) inTx(in *instance, fn func(ctx context.Context, tx bun.Tx) error) {
	m.must(in.db.RunInTx(context.Background(), nil, fn))
	var ids []string
	m.must(m.db.NewRaw("SELECT event_id FROM bc_outbox_event").Scan(context.Background(), &ids))
	for _, id := range ids {
		m.saved[id] = true
	}
}

// next is a new event with its seat.
func (m *machine) next(ctx context.Context, tx bun.Tx, tenant int64, aggregate string) (done, error) {
	m.seq++
	d := done{Of: aggregate, Seq: m.seq, Seat: fmt.Sprint("seat-", m.seq)}
	_, err := tx.ExecContext(ctx, "INSERT INTO seat (id, tenant, aggregate, status) VALUES (?, ?, ?, 'FROZEN')", d.Seat, tenant, aggregate)
	return d, err
}

// draft says what to save: so many events of one aggregate.
type draft struct {
	tenant    int64
	aggregate string
	isNew     bool // of the type that only the newer release takes
	n         int
}

func (m *machine) save(in *instance, what draft) {
	m.inTx(in, func(ctx context.Context, tx bun.Tx) error {
		var events []bus.Event
		for range what.n {
			d, err := m.next(ctx, tx, what.tenant, what.aggregate)
			if err != nil {
				return err
			}
			var e bus.Event = d
			if what.isNew {
				e = more{d}
			}
			events = append(events, outbox.With(e, outbox.Tenant(what.tenant, 0)))
		}
		return in.ob.Save(ctx, tx, events...)
	})
}

// saveKeyed saves a fact with its event, or again what has been saved.
func (m *machine) saveKeyed(in *instance, key string) {
	m.inTx(in, func(ctx context.Context, tx bun.Tx) error {
		if err := m.addFact(ctx, tx, key); err != nil {
			return err
		}
		return m.saveFact(ctx, tx, in.ob, key)
	})
}

func (m *machine) addFact(ctx context.Context, tx bun.Tx, key string) error {
	n, err := tx.NewSelect().Table("fact").Where("k = ?", key).Count(ctx)
	if err != nil || n > 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO fact (k, seq) VALUES (?, 0)", key)
	return err
}

// saveFact saves the event of a fact, each of which is an aggregate of its own.
func (m *machine) saveFact(ctx context.Context, tx bun.Tx, ob *outbox.Outbox, key string) error {
	if _, err := tx.ExecContext(ctx, "UPDATE fact SET seq = 1 WHERE k = ?", key); err != nil {
		return err
	}
	n, err := tx.NewSelect().Table("seat").Where("id = ?", "seat of "+key).Count(ctx)
	if err == nil && n == 0 {
		_, err = tx.ExecContext(ctx, "INSERT INTO seat (id, tenant, aggregate, status) VALUES (?, 0, ?, 'FROZEN')", "seat of "+key, key)
	}
	if err != nil {
		return err
	}
	return ob.Save(ctx, tx, keyed{done{Of: key, Seq: 1, Seat: "seat of " + key}, key})
}

// saveDelayed saves an event that takes its place in the order when it falls due.
func (m *machine) saveDelayed(in *instance) {
	m.inTx(in, func(ctx context.Context, tx bun.Tx) error {
		d, err := m.next(ctx, tx, 0, fmt.Sprint("delayed-", m.seq))
		if err != nil {
			return err
		}
		return in.ob.Save(ctx, tx, outbox.With(d, outbox.DeliverAt(time.Now().Add(10*time.Hour))))
	})
}

func (m *machine) rollBack(in *instance) {
	planned := errors.New("planned")
	err := in.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error {
		d, err := m.next(ctx, tx, 0, "a")
		if err == nil {
			err = in.ob.Save(ctx, tx, d)
		}
		if err == nil {
			err = planned
		}
		return err
	})
	require.ErrorIs(m.rt, err, planned)
}

// loseEvent is the fault that the consistency check is for: a fact without its event.
func (m *machine) loseEvent(key string) {
	m.must(m.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error { return m.addFact(ctx, tx, key) }))
}

// deliver publishes what is due, and waits for it.
func (m *machine) deliver(in *instance) {
	p, err := outbox.NewPublisher(in.ob, in.b, outbox.PublisherConfig{})
	m.must(err)
	_, err = p.RunOnce(context.Background())
	m.must(err)
}

// timePasses makes due what waits for a time.
func (m *machine) timePasses() {
	m.exec("UPDATE bc_event_consume_log SET next_retry_at = " + m.ago(time.Second) + " WHERE status IN ('PENDING', 'FAILED')")
	m.exec("UPDATE bc_outbox_event SET next_retry_at = " + m.ago(time.Second) + " WHERE status = 'SCHEDULED'")
}

// die leaves what a process leaves that dies in the middle: events, or a delivery, in flight.
func (m *machine) die(rt *rapid.T) {
	lease := "locked_by = 'dead', lock_version = lock_version + 1, next_retry_at = " + m.ago(-time.Hour)
	if rapid.Bool().Draw(rt, "with a delivery") {
		started := rapid.IntRange(0, 2).Draw(rt, "leased, started, or counted too")
		m.exec(fmt.Sprintf("UPDATE bc_event_consume_log SET status = 'PROCESSING', attempts = attempts + %d, started = %d, %s "+
			"WHERE status = 'FAILED'", started/2, started, lease))
		return
	}
	m.exec("UPDATE bc_outbox_event SET status = 'DISPATCHING', " + lease + " WHERE status = 'NEW'")
}

func (m *machine) leasesExpire() {
	m.exec("UPDATE bc_outbox_event SET next_retry_at = " + m.ago(time.Second) + " WHERE status = 'DISPATCHING'")
	m.exec("UPDATE bc_event_consume_log SET next_retry_at = " + m.ago(time.Second) + " WHERE status = 'PROCESSING'")
}

// operate lets an operator intervene in some delivery.
func (m *machine) operate(rt *rapid.T, action string) {
	var all []struct{ ConsumerName, EventID string }
	m.must(m.db.NewRaw("SELECT consumer_name, event_id FROM bc_event_consume_log WHERE status IN ('DEAD', 'FAILED', 'PENDING') "+
		"ORDER BY id").Scan(context.Background(), &all))
	if len(all) == 0 {
		return
	}
	d, ob, ctx := rapid.SampledFrom(all).Draw(rt, "delivery"), m.any(rt).ob, context.Background()
	var err error
	switch action {
	case "retry":
		err = ob.Retry(ctx, op, d.EventID, d.ConsumerName)
	case "retry all":
		err = ob.Retry(ctx, op, d.EventID)
	case "skip":
		if err = ob.Skip(ctx, op, d.EventID, d.ConsumerName); err == nil {
			m.skipped[d.ConsumerName+"/"+d.EventID] = true
		}
	case "mark dead":
		err = ob.MarkDead(ctx, op, d.EventID, d.ConsumerName)
	}
	if !errors.Is(err, outbox.ErrNotFound) { // not in a state that allows it
		m.must(err)
	}
}

// replay lets an operator have a delivery repeated, in place of an earlier repetition.
func (m *machine) replay(rt *rapid.T) {
	const consumer = "Unordered"
	var done []string
	m.must(m.db.NewRaw("SELECT l.event_id FROM bc_event_consume_log l JOIN bc_outbox_event e ON e.event_id = l.event_id "+
		"WHERE l.consumer_name = ? AND l.status = 'SUCCESS' AND e.status IN ('SENT', 'FAILED', 'DEAD') ORDER BY l.id",
		consumer).Scan(context.Background(), &done))
	if len(done) == 0 {
		return
	}
	id, name := rapid.SampledFrom(done).Draw(rt, "delivery"), consumelog.ReplayName(consumer)
	if m.count("SELECT COUNT(*) FROM bc_event_consume_log WHERE consumer_name = ? AND event_id = ? "+
		"AND status NOT IN ('SUCCESS', 'SKIPPED')", name, id) > 0 {
		return // one is under way
	}
	m.exec("DELETE FROM effect WHERE consumer = ? AND event_id = ?", name, id)
	m.must(m.any(rt).ob.Replay(context.Background(), op, id, consumer))
}

// ghostAppears registers a consumer that only an instance of another release has.
func (m *machine) ghostAppears() {
	if m.count("SELECT COUNT(*) FROM bc_consumer WHERE name = ?", ghost) == 0 {
		m.exec("INSERT INTO bc_consumer (name, event_types, aliases) VALUES (?, '[\"thing.done\"]', '[]')", ghost)
		m.exec("INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES (?, 'thing.done')", ghost)
	}
}

// retireGhost retires it, and skips what waits for it.
func (m *machine) retireGhost() {
	ob, ctx := m.instances[1].ob, context.Background()
	if m.count("SELECT COUNT(*) FROM bc_consumer WHERE name = ?", ghost) == 1 {
		m.must(ob.Retire(ctx, op, ghost))
	}
	var waiting []string
	m.must(m.db.NewRaw("SELECT event_id FROM bc_event_consume_log WHERE consumer_name = ? AND status IN ('PENDING', 'DEAD')", ghost).Scan(ctx,
		&waiting))
	for _, id := range waiting {
		m.must(ob.Skip(ctx, op, id, ghost))
	}
}

func (m *machine) reap() {
	_, err := m.jobs.reaper.RunOnce(context.Background())
	m.must(err)
}

// retain makes what is SENT old, and removes it.
func (m *machine) retain() {
	old := m.ago(time.Hour)
	m.exec("UPDATE bc_outbox_event SET created_at = " + old + ", sent_at = CASE WHEN sent_at IS NOT NULL THEN " + old + " END")
	_, err := m.jobs.retention.RunOnce(context.Background())
	m.must(err)
	var ids []string
	m.must(m.db.NewRaw("SELECT event_id FROM bc_outbox_event").Scan(context.Background(), &ids))
	there := make(map[string]bool)
	for _, id := range ids {
		there[id] = true
	}
	for id := range m.saved {
		if there[id] {
			continue
		}
		for _, name := range consumers { // it had been done before it went
			if !m.skipped[name+"/"+id] {
				require.Equal(m.rt, 1, m.count("SELECT COUNT(*) FROM effect WHERE consumer = ? AND event_id = ?", name, id))
			}
			delete(m.skipped, name+"/"+id)
		}
		m.exec("DELETE FROM effect WHERE event_id = ?", id)
		// its event may come again
		m.exec("DELETE FROM seat WHERE CONCAT('seat of ', aggregate) = id AND NOT EXISTS (SELECT 1 FROM bc_outbox_event e " +
			"WHERE e.aggregate_id = seat.aggregate)")
		delete(m.saved, id)
	}
}

// backfill saves the events of facts that have none; those that retention has removed come again.
func (m *machine) backfill() {
	_, err := m.jobs.consistency.RunOnce(context.Background())
	m.must(err)
	m.inTx(m.instances[0], func(context.Context, bun.Tx) error { return nil })
}

// drain lets everything come to its end: handlers succeed, nobody is paused, and an operator retries
// what is DEAD.
func (m *machine) drain() {
	clear(m.answers)
	for _, name := range consumers {
		m.must(m.instances[0].ob.Resume(context.Background(), op, name))
	}
	m.backfill()
	for round := 0; m.count("SELECT (SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT') + (SELECT COUNT(*) "+
		"FROM bc_event_consume_log WHERE status NOT IN ('SUCCESS', 'SKIPPED'))") > 0; round++ {
		if round == 50 {
			m.rt.Fatalf("not everything came to its end")
		}
		m.retireGhost()
		var dead []struct{ ConsumerName, EventID string }
		m.must(m.db.NewRaw("SELECT consumer_name, event_id FROM bc_event_consume_log WHERE status = 'DEAD'").Scan(context.Background(), &dead))
		for _, d := range dead {
			m.must(m.instances[1].ob.Retry(context.Background(), op, d.EventID, d.ConsumerName))
		}
		m.timePasses()
		m.leasesExpire()
		m.deliver(m.instances[round%2])
	}
}
