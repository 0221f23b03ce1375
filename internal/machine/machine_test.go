package machine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/reaper"
)

// done is the event of the machine.
type done struct {
	Of   string `json:"of"`
	Seq  int    `json:"seq"`
	Seat string `json:"seat"`
}

func (done) EventType() string              { return "thing.done" }
func (d done) Aggregate() (kind, id string) { return "THING", d.Of }

// keyed is the same with an identity.
type keyed struct {
	done
	Key string `json:"key"`
}

func (k keyed) IdempotencyKey() string { return k.Key }

// more is an event of a type that only the newer release takes.
type more struct{ done }

func (more) EventType() string { return "thing.more" }

var (
	quiet     = slog.New(slog.DiscardHandler)
	consumers = []string{"Ordered", "Passing", "Unordered"}
	ghost     = "Ghost"  // a consumer that no code has any more
	renamed   = "Sorted" // what the newer release calls the consumer whose key is Ordered
	op        = outbox.Operation{Actor: "machine", Reason: "to see what happens"}
)

// instance is a process.
type instance struct {
	db *bun.DB
	ob *outbox.Outbox
	b  *bus.Bus
}

// machine is a small deployment, and what should be true of it.
type machine struct {
	rt        *rapid.T
	db        *bun.DB
	instances []*instance
	jobs      struct {
		reaper      *reaper.Reaper
		retention   *outbox.Retention
		consistency *consistency.Consistency
	}
	answers map[string]string // what the handlers of a consumer do now
	seq     int
	saved   map[string]bool // committed events that are still there
	skipped map[string]bool // consumer/event
}

// The second instance is one of a newer release: it takes a type more, and one of its consumers has another name.
//
// Whatever people and processes do, in whatever order: every promise holds after every step, and all
// of it is done in the end.
func TestEverySequenceOfCommandsKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	for _, dialect := range []string{"sqlite", "mysql"} {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			pools := []*bun.DB{testdb.OpenDSN(t, dsn), testdb.OpenDSN(t, dsn)}
			require.NoError(t, migrations.Up(t.Context(), pools[0]))
			makeTables(t, pools[0])
			rapid.Check(t, func(rt *rapid.T) {
				m := start(rt, pools)
				rt.Repeat(m.commands())
				m.drain()
				m.check(true)
			})
		})
	}
}

func makeTables(t *testing.T, db *bun.DB) {
	t.Helper()
	id := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
	}[db.Dialect().Name().String()]
	for _, query := range []string{
		"CREATE TABLE effect (id " + id + ", consumer VARCHAR(128) NOT NULL, event_id VARCHAR(64) NOT NULL, aggregate VARCHAR(128) NOT NULL, " +
			"seq INT NOT NULL)",
		"CREATE TABLE seat (id VARCHAR(64) PRIMARY KEY, tenant BIGINT NOT NULL, aggregate VARCHAR(128) NOT NULL, status VARCHAR(16) NOT NULL)",
		"CREATE TABLE fact (k VARCHAR(64) PRIMARY KEY, seq INT NOT NULL)",
	} {
		_, err := db.ExecContext(t.Context(), query)
		require.NoError(t, err)
	}
}

// start makes the deployment on empty tables.
func start(rt *rapid.T, pools []*bun.DB) *machine {
	m := &machine{rt: rt, db: pools[0], answers: make(map[string]string), saved: make(map[string]bool), skipped: make(map[string]bool)}
	for _, table := range []string{
		"bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt", "bc_audit_log", "bc_consumer",
		"bc_consumer_type", "effect", "seat", "fact",
	} {
		m.exec("DELETE FROM " + table)
	}
	for i, db := range pools {
		in := &instance{db: db, b: bus.New(db, bus.Config{Logger: quiet})}
		var err error
		in.ob, err = outbox.New(db, outbox.Config{Logger: quiet, Instance: fmt.Sprint("instance-", i), MaxRetryCount: 3})
		require.NoError(rt, err)
		m.register(in.b, i == 1)
		m.instances = append(m.instances, in)
	}
	m.setUpJobs()
	for _, in := range m.instances {
		m.deliver(in) // registers the consumers
	}
	return m
}

// register registers the consumers of a release.
func (m *machine) register(b *bus.Bus, isNewer bool) {
	for key, cfg := range map[string]bus.ConsumerConfig{
		"Ordered": {}, "Passing": {DeadPolicy: bus.Continue, Batch: 2, Queue: 2},
		"Unordered": {Unordered: true, Replayable: true},
	} {
		name := key
		if isNewer && key == "Ordered" {
			name, cfg.Key = renamed, key
		}
		c := b.Consumer(name, cfg)
		bus.On(c, m.handle)
		if isNewer {
			bus.On(c, func(ctx context.Context, tx bun.Tx, msg bus.Message[more]) error {
				return m.handle(ctx, tx, bus.Message[done]{
					Envelope: msg.Envelope, Payload: msg.Payload.done, Consumer: msg.Consumer, Replay: msg.Replay,
				})
			})
		}
	}
}

// handle is the handler of all consumers.
func (m *machine) handle(ctx context.Context, tx bun.Tx, msg bus.Message[done]) error {
	if msg.Consumer == renamed {
		msg.Consumer = "Ordered"
	}
	by := msg.Consumer
	if msg.Replay {
		by = consumelog.ReplayName(by)
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", by, msg.ID,
		fmt.Sprintf("%d/%s", msg.TenantID, msg.AggregateID), msg.Payload.Seq)
	if err != nil {
		return err
	}
	switch m.answers[msg.Consumer] { // nobody changes it while something runs
	case "fail":
		return errors.New("as told")
	case "permanent":
		return bus.Permanent(errors.New("as told"))
	case "panic":
		panic("as told")
	case "later":
		return bus.RetryAfter(errors.New("as told"), time.Second)
	}
	if msg.Consumer != "Ordered" {
		return nil
	}
	res, err := tx.ExecContext(ctx, "UPDATE seat SET status = 'TAKEN' WHERE id = ? AND status = 'FROZEN'", msg.Payload.Seat)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err == nil && n == 0 {
		return bus.Permanent(errors.New("the reaper has released the seat of an event that waits"))
	}
	return nil
}

// setUpJobs makes reaper, retention and consistency check.
func (m *machine) setUpJobs() {
	in, err := m.instances[0], error(nil)
	m.jobs.reaper, err = reaper.New(in.db, in.ob, reaper.Config{Logger: quiet}, reaper.Task{
		Name: "seat", TTL: time.Nanosecond, Consumer: "Ordered",
		Owner: &reaper.Owner{Guard: func(context.Context, bun.Tx, reaper.Aggregate) (bool, error) { return true, nil }}, // SQLite has one writer
		Find: func(ctx context.Context, db bun.IDB, q reaper.Query) (found []reaper.Lock, err error) {
			var rows []struct {
				ID, Aggregate string
				Tenant        int64
			}
			err = db.NewRaw("SELECT id, tenant, aggregate FROM seat WHERE status = 'FROZEN' AND id > ? ORDER BY id LIMIT ?", q.After,
				q.Limit).Scan(ctx, &rows)
			for _, r := range rows {
				found = append(found, reaper.Lock{ID: r.ID, TenantID: r.Tenant, AggregateType: "THING", AggregateID: r.Aggregate, Age: time.Minute})
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
	})
	require.NoError(m.rt, err)
	m.jobs.retention, err = outbox.NewRetention(in.ob, outbox.RetentionConfig{Keep: 30 * time.Minute})
	require.NoError(m.rt, err)
	m.jobs.consistency, err = consistency.New(in.db, consistency.Config{Logger: quiet, MaxRepairs: 1000}, consistency.Check[string]{
		Name: "thing.done",
		Key:  func(k string) string { return k },
		Find: func(ctx context.Context, db bun.IDB, q consistency.Query) (keys []string, err error) {
			err = db.NewRaw("SELECT k FROM fact WHERE k > ? ORDER BY k LIMIT ?", q.After, q.Limit).Scan(ctx, &keys)
			return keys, err
		},
		Missing: func(ctx context.Context, db bun.IDB, keys []string) (missing []string, err error) {
			for _, k := range keys {
				ids, err := in.ob.Missing(ctx, db, []string{m.idOf(k)})
				if err != nil {
					return nil, err
				}
				if len(ids) > 0 {
					missing = append(missing, k)
				}
			}
			return missing, nil
		},
		Repair: func(ctx context.Context, tx bun.Tx, k string) (bool, error) {
			return true, m.saveFact(ctx, tx, in.ob, k)
		},
	})
	require.NoError(m.rt, err)
}

// ago is a time of the database's clock; negative is the future.
func (m *machine) ago(d time.Duration) string {
	if m.db.Dialect().Name().String() == "mysql" {
		return fmt.Sprintf("UTC_TIMESTAMP(6) - INTERVAL %d SECOND", int(d.Seconds()))
	}
	return fmt.Sprintf("(strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '%d seconds') || '000')", -int(d.Seconds()))
}

func (m *machine) exec(query string, args ...any) {
	_, err := m.db.ExecContext(context.Background(), query, args...)
	require.NoError(m.rt, err, query)
}

func (m *machine) count(query string, args ...any) (n int) {
	require.NoError(m.rt, m.db.QueryRowContext(context.Background(), query, args...).Scan(&n), query)
	return n
}

// check asks for every invariant that holds now.
func (m *machine) check(atEnd bool) {
	cfg := invariant.Config{
		Quiet: atEnd, Effects: invariant.Effects{
			Table: "effect", Unordered: []string{"Unordered", "Passing", consumelog.ReplayName("Unordered")},
		},
	}
	for id := range m.saved {
		cfg.History.Committed = append(cfg.History.Committed, id)
	}
	found, err := invariant.Check(context.Background(), m.db, cfg)
	require.NoError(m.rt, err)
	require.Empty(m.rt, found)
	if !atEnd {
		return
	}
	require.Zero(m.rt, m.count("SELECT COUNT(*) FROM bc_delivery_attempt WHERE error_message LIKE '%has released%'"),
		"the reaper has left alone what waits")
	for id := range m.saved {
		for _, name := range consumers {
			want := 1
			if m.skipped[name+"/"+id] {
				want = 0
			}
			require.Equal(m.rt, want, m.count("SELECT COUNT(*) FROM effect WHERE consumer = ? AND event_id = ?", name, id),
				"effects of %s at %s", id, name)
		}
	}
	require.Equal(m.rt, m.count("SELECT COUNT(*) FROM fact"), m.count("SELECT COUNT(*) FROM fact WHERE seq > 0"),
		"every fact has had its event")
}
