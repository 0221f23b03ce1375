package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// shaped1 is an event type as an old release knows it, shaped2 as a newer one does, and shaped3 as the one after that.
type shaped1 struct {
	OrderID string `json:"orderId"`
	Seq     int    `json:"seq"`
}

func (shaped1) EventType() string              { return "order.shaped" }
func (e shaped1) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

type shaped2 struct {
	OrderID  string `json:"orderId"`
	Sequence int    `json:"sequence"`
}

func (shaped2) EventType() string              { return "order.shaped" }
func (e shaped2) Aggregate() (kind, id string) { return "ORDER", e.OrderID }
func (shaped2) SchemaVersion() int             { return 2 }

type shaped3 struct{ shaped2 }

func (shaped3) SchemaVersion() int { return 3 }

// oldShape registers a consumer of the release that knows version 1, newShape one of the release that knows version 2.
func (f *fixture) oldShape(name string, cfg bus.ConsumerConfig) {
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[shaped1]) error {
		return effect(ctx, tx, m, m.Payload.Seq)
	})
}

func (f *fixture) newShape(name string, cfg bus.ConsumerConfig, fails ...*atomic.Bool) {
	bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[shaped2]) error {
		if len(fails) > 0 && fails[0].Load() {
			return errHandler
		}
		return effect(ctx, tx, m, m.Payload.Sequence)
	})
}

func (f *fixture) upcasts() {
	f.bus.Upcast("order.shaped", 1, func(p json.RawMessage) (json.RawMessage, error) {
		var v1 shaped1
		if err := json.Unmarshal(p, &v1); err != nil {
			return nil, err
		}
		return json.Marshal(shaped2{v1.OrderID, v1.Seq})
	})
}

// releases are an instance of each of two releases of a consumer on one database.
func releases(t *testing.T, db *bun.DB, fails ...*atomic.Bool) (old, fresh *fixture) {
	t.Helper()
	old, fresh = newFixture(t, db), newFixture(t, db)
	old.effects()
	old.oldShape("Counter", bus.ConsumerConfig{})
	fresh.newShape("Counter", bus.ConsumerConfig{}, fails...)
	fresh.upcasts()
	return old, fresh
}

const leftRows = "FROM bc_event_consume_log WHERE status = 'PENDING' AND attempts = 0 AND error_message IS NULL AND locked_by IS NULL"

// An old instance leaves a newer schema version to instances that know it: whichever started first, the other consumers get
// the event at once, later events of its aggregate wait, and nobody else does.
func TestNewerSchemaVersionWaitsForAnInstanceThatKnowsIt(t *testing.T) {
	t.Parallel()
	for _, freshWasFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("the newer release started first %v", freshWasFirst), func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				old, fresh := releases(t, db)
				old.newShape("Other", bus.ConsumerConfig{}) // has changed before
				old.upcasts()
				fresh.newShape("Other", bus.ConsumerConfig{})
				if freshWasFirst {
					fresh.once()
				}
				old.save(shaped2{"1", 1}, shaped1{"1", 2}, shaped1{"2", 3})
				old.once()
				require.Equal(t, 3, old.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Other'"))
				require.Equal(t, 1, old.count("SELECT COUNT(*) FROM effect WHERE consumer = 'Counter' AND aggregate = '2'"))
				require.Equal(t, map[consumelog.Status]int{consumelog.Success: 4, consumelog.Pending: 2}, old.deliveries())
				require.Equal(t, map[outbox.Status]int{outbox.StatusFailed: 2, outbox.StatusSent: 1}, old.statuses())
				for range 3 { // it is not claimed again
					old.once()
				}
				require.Equal(t, 1, old.count("SELECT COUNT(*) "+leftRows+" AND lock_version = 0 AND outbox_id = (SELECT MIN(id) "+
					"FROM bc_outbox_event)"))
				require.Equal(t, 2, old.count("SELECT COUNT(*) "+leftRows))
				require.Equal(t, 0, old.count("SELECT COUNT(*) FROM bc_delivery_attempt"))

				fresh.once()
				fresh.once() // what waited behind it
				require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, old.statuses())
				require.Equal(t, []string{"1", "2"}, old.counted("1"))
				require.Equal(t, 0, old.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
			})
		})
	}
}

// counted is the order in which Counter's effects of an aggregate happened.
func (f *fixture) counted(aggregate string) []string {
	return f.sequenceOf("SELECT seq FROM effect WHERE consumer = 'Counter' AND aggregate = '" + aggregate + "' ORDER BY id")
}

// The delivery may have run already where its version is known, and wait for its next attempt: an old instance that finds
// it due leaves it as well, in its place, and counts nothing. When the old one is gone it goes on.
func TestOldInstanceLeavesWhatHasFailedElsewhere(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		var fails atomic.Bool
		fails.Store(true)
		old, fresh := releases(t, db, &fails)
		fresh.save(shaped2{"1", 1}, shaped1{"1", 2})
		fresh.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Pending: 1}, fresh.deliveries())
		for range 3 {
			old.hurry()
			old.once()
		}
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 2}, old.deliveries())
		require.Equal(t, 1, old.count("SELECT COUNT(*) FROM bc_delivery_attempt"), "that of the newer release")
		require.Equal(t, 1, old.count("SELECT SUM(attempts) FROM bc_event_consume_log"))
		old.exec("DELETE FROM effect")
		fails.Store(false)
		fresh.once()
		fresh.hurry()
		fresh.once()
		require.Equal(t, []string{"1", "2"}, old.counted("1"))
		require.Equal(t, 2, old.count("SELECT attempts FROM bc_event_consume_log WHERE outbox_id = (SELECT MIN(id) FROM bc_outbox_event)"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, old.statuses())
	})
}

// What ends in an aggregate wakes those behind it, but not what waits for an instance that knows its version.
func TestWhatEndsWakesNothingThatWasLeft(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		var fails atomic.Bool
		fails.Store(true)
		bus.On(old.bus.Consumer("Counter", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[shaped1]) error {
			if fails.Load() {
				return errHandler
			}
			return effect(ctx, tx, m, m.Payload.Seq)
		})
		fresh.newShape("Counter", bus.ConsumerConfig{})
		old.save(shaped1{"1", 1}, shaped2{"1", 2})
		old.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Failed: 1, consumelog.Pending: 1}, old.deliveries())
		fails.Store(false)
		old.exec("UPDATE bc_event_consume_log SET next_retry_at = created_at WHERE status = 'FAILED'")
		old.once()
		require.Equal(t, []string{"1"}, old.counted("1"))
		old.once()
		require.Equal(t, 1, old.count("SELECT COUNT(*) "+leftRows+" AND lock_version = 0"), "nobody has claimed it")
		fresh.once()
		require.Equal(t, []string{"1", "2"}, old.counted("1"))
	})
}

// Both releases run and save: everything comes, once and in order.
func TestTwoReleasesWithDifferentVersionsSideBySide(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := releases(t, db)
		raw := newFixture(t, db)
		old.run(outbox.PublisherConfig{})
		fresh.run(outbox.PublisherConfig{})
		const aggregates, each = 10, 20
		for seq := range each {
			for a := range aggregates {
				if id := strconv.Itoa(a); (seq+a)%2 == 0 {
					old.save(shaped1{id, seq})
				} else {
					fresh.save(shaped2{id, seq})
				}
			}
			if seq%4 == 0 { // of a process without a publisher, for whoever claims them first
				for a := range aggregates {
					raw.save(shaped2{"raw" + strconv.Itoa(a), seq}, shaped1{"raw" + strconv.Itoa(a), seq + 1})
				}
			}
		}
		const all = aggregates*each + 2*aggregates*each/4
		old.eventually(func() bool { return old.statuses()[outbox.StatusSent] == all }, "all are sent")
		require.Equal(t, all, old.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, 0, old.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		for a := range aggregates {
			for _, id := range []string{strconv.Itoa(a), "raw" + strconv.Itoa(a)} {
				var seqs []int
				require.NoError(t, db.NewRaw("SELECT seq FROM effect WHERE aggregate = ? ORDER BY id", id).Scan(t.Context(), &seqs))
				require.True(t, slices.IsSorted(seqs), "%s: %v", id, seqs)
			}
		}
	})
}

// Consumers of every kind leave what they do not know: external ones, those that take batches, those without an order,
// replays, and those that take several types.
func TestEveryKindOfConsumerLeavesANewerVersion(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := newFixture(t, db), newFixture(t, db)
		old.effects()
		var calls atomic.Int64
		old.kinds(func(c *bus.Consumer) {
			bus.OnExternal(c, func(context.Context, bus.Message[shaped1]) error { calls.Add(1); return nil })
		}, func(c *bus.Consumer) {
			bus.OnBatch(c, func(_ context.Context, _ bun.Tx, ms []bus.Message[shaped1]) error {
				calls.Add(int64(len(ms)))
				return nil
			})
		})
		fresh.kinds(func(c *bus.Consumer) {
			bus.OnExternal(c, func(context.Context, bus.Message[shaped2]) error { calls.Add(100); return nil })
		}, func(c *bus.Consumer) {
			bus.OnBatch(c, func(_ context.Context, _ bun.Tx, ms []bus.Message[shaped2]) error {
				calls.Add(100 * int64(len(ms)))
				return nil
			})
		})
		fresh.upcasts()
		old.oldShape("Unordered", bus.ConsumerConfig{Unordered: true, Replayable: true})
		fresh.newShape("Unordered", bus.ConsumerConfig{Unordered: true, Replayable: true})
		old.save(shaped2{"1", 1}, shaped1{"1", 2}, orderPaid{OrderID: "2"})
		old.once()
		require.Equal(t, int64(0), calls.Load(), "the second event waits behind the first")
		require.Equal(t, 2, old.count("SELECT COUNT(*) FROM effect"), "of an unordered consumer, and of another type")
		require.Equal(t, 5, old.count("SELECT COUNT(*) "+leftRows))
		fresh.once()
		fresh.hurry()
		fresh.once()
		require.Equal(t, int64(400), calls.Load())
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, old.statuses())

		event := old.text("SELECT event_id FROM bc_outbox_event WHERE schema_version = 2")
		require.NoError(t, old.ob.Intervene(t.Context(), outbox.Operation{Actor: "ops", Reason: "again"},
			outbox.Intervention{Action: outbox.ActionReplay, EventID: event, Consumers: []string{"Unordered"}}))
		old.once()
		require.Equal(t, 1, old.count("SELECT COUNT(*) "+leftRows+" AND consumer_name = 'Unordered@replay'"))
		fresh.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 3}, old.statuses())
		require.Equal(t, 4, old.count("SELECT COUNT(*) FROM effect"))
	})
}

// kinds registers an external consumer and one that takes batches, and also another type.
func (f *fixture) kinds(external, batch func(*bus.Consumer)) {
	external(f.bus.Consumer("External", bus.ConsumerConfig{}))
	c := f.bus.Consumer("Batch", bus.ConsumerConfig{})
	batch(c)
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
		return effect(ctx, tx, m, m.Payload.Seq)
	})
}

func (f *fixture) text(query string) (s string) {
	f.t.Helper()
	require.NoError(f.t, f.db.QueryRowContext(context.Background(), query).Scan(&s))
	return s
}

// Of three releases each takes what it knows, a backlog of what it does not know in front or not.
func TestEachOfThreeReleasesTakesTheVersionsThatItKnows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := releases(t, db)
		const many = 450 // more than one look
		for i := range many {
			old.save(shaped3{shaped2{"3-" + strconv.Itoa(i), 1}})
		}
		for i := range many {
			old.save(shaped2{"2-" + strconv.Itoa(i), 2})
		}
		for range 5 {
			old.once()
		}
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 2 * many}, old.deliveries())
		fresh.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: many, consumelog.Success: many}, old.deliveries())
		require.Equal(t, many, old.count("SELECT COUNT(*) FROM effect WHERE seq = 2"))

		newest := newFixture(t, db)
		bus.On(newest.bus.Consumer("Counter", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[shaped3]) error {
			return effect(ctx, tx, m, 3)
		})
		newest.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2 * many}, old.statuses(), "all at once")
	})
}

// What another release has left while RunOnce delivers is delivered by the same RunOnce, although its lanes have just looked for
// what is left, and the database is slow.
func TestRunOnceComesBackForWhatOthersHaveLeft(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := releases(t, db)
		old.save(shaped2{"1", 1}, shaped2{"2", 2})
		old.once()
		require.Equal(t, 2, old.count("SELECT COUNT(*) "+leftRows))
		old.exec("UPDATE bc_event_consume_log SET next_retry_at = '" + someday + "' WHERE aggregate_id = '2'")
		fresh.whenRunOnceLooksAgain(func() {
			require.NoError(t, old.fallDue(t.Context(), db, "2"))
			old.once()
			require.Equal(t, 1, old.count("SELECT COUNT(*) "+leftRows+" AND aggregate_id = '2'"))
		})
		// A lane that walks for so long rests ten times as long, unless it must see all.
		walk := &before{text: " AND id > 0 ORDER BY id LIMIT 200"}
		walk.do = func() { time.Sleep(time.Second) } //nolint:forbidigo // how slow the database is, which nobody waits for
		db.AddQueryHook(walk)                        //nolint:staticcheck // the engine's own statements are to be seen
		fresh.once()
		require.True(t, walk.done.Load())
		require.Equal(t, []string{"1", "2"}, fresh.sequenceOf("SELECT seq FROM effect ORDER BY id"))
	})
}

// Only an operator makes such a delivery DEAD, or gives it up. A retry does not make an old instance run it.
func TestOperatorDecidesWhatNobodyKnows(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, fresh := releases(t, db)
		old.save(shaped2{"1", 1}, shaped1{"1", 2})
		old.once()
		event := old.text("SELECT event_id FROM bc_outbox_event WHERE schema_version = 2")
		do := func(action string) {
			t.Helper()
			require.NoError(t, old.ob.Intervene(t.Context(), outbox.Operation{Actor: "ops", Reason: "rolled back"},
				outbox.Intervention{Action: action, EventID: event, Consumers: []string{"Counter"}}))
			old.once()
		}
		do(outbox.ActionRetry)
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 2}, old.deliveries())
		do(outbox.ActionMarkDead)
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 1, consumelog.Dead: 1}, old.deliveries())
		do(outbox.ActionRetry)
		require.Equal(t, map[consumelog.Status]int{consumelog.Pending: 2}, old.deliveries())
		do(outbox.ActionSkip)
		old.once()
		require.Equal(t, map[consumelog.Status]int{consumelog.Skipped: 1, consumelog.Success: 1}, old.deliveries())
		require.Equal(t, 0, old.count("SELECT COUNT(*) FROM bc_delivery_attempt"))
		fresh.once()
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, old.statuses())
		require.Equal(t, []string{"2"}, old.counted("1"))
	})
}

// An instance says once, after the grace time, that no running instance knows the version.
func TestUnknownSchemaVersionIsReported(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		old, log := unconnected(t, db)
		old.effects()
		old.oldShape("Counter", bus.ConsumerConfig{})
		old.save(shaped2{"1", 1}, shaped2{"2", 1})
		p := old.publisher(outbox.PublisherConfig{})
		once := func() {
			t.Helper()
			_, err := p.RunOnce(t.Context())
			require.NoError(t, err)
		}
		once()
		once()
		const says = "no running instance knows the schema version"
		require.Equal(t, 0, log.count(says), "not yet")
		old.exec("UPDATE bc_event_consume_log SET updated_at = " + old.daysAgo())
		once()
		require.Equal(t, 1, log.count(says), log.text())
		require.Equal(t, 1, log.count("consumer=Counter eventType=order.shaped schemaVersion=2"))
	})
}
