package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"pgregory.net/rapid"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/outbox"
)

// plan is one random life of a small deployment.
type plan struct {
	instances int
	deletes   bool           // whether SENT events are deleted
	saves     [][]int        // transactions, each with the aggregates of its events
	rollback  map[int]bool   // transactions that do not commit
	failures  map[string]int // consumer/event number → how many attempts fail
	order     []int          // which instance publishes next
}

func drawPlan(rt *rapid.T) plan {
	p := plan{
		instances: rapid.IntRange(1, 3).Draw(rt, "instances"),
		deletes:   rapid.Bool().Draw(rt, "deletes"),
		saves:     rapid.SliceOfN(rapid.SliceOfN(rapid.IntRange(0, 3), 1, 4), 1, 12).Draw(rt, "saves"),
		rollback:  make(map[int]bool),
		failures:  make(map[string]int),
		order:     rapid.SliceOfN(rapid.IntRange(0, 2), 4, 12).Draw(rt, "order"),
	}
	for i := range p.saves {
		p.rollback[i] = rapid.IntRange(0, 9).Draw(rt, "rollback") == 0
	}
	for _, c := range []string{"Ordered", "Passing", "Batches", "Unordered"} {
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, 40), 0, 4).Draw(rt, "failing events of "+c) {
			p.failures[fmt.Sprintf("%s/%d", c, n)] = rapid.IntRange(1, 2).Draw(rt, "failures")
		}
	}
	return p
}

// failing counts down the failures of a plan.
type failing struct {
	mu   sync.Mutex
	left map[string]int
}

func (f *failing) next(consumer string, seq int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := fmt.Sprintf("%s/%d", consumer, seq)
	if f.left[key] == 0 {
		return nil
	}
	f.left[key]--
	return errors.New("planned")
}

// Whatever is committed, fails and publishes in whatever order: every consumer gets every
// committed event exactly once, and the ordered ones get those of an aggregate in order.
func TestRandomLivesKeepEveryPromise(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			pools := []*bun.DB{migrated(t, dsn), testdb.OpenDSN(t, dsn), testdb.OpenDSN(t, dsn)}
			newFixture(t, pools[0]).effects()
			rapid.Check(t, func(rt *rapid.T) { live(t, rt, pools, drawPlan(rt)) })
		})
	}
}

func live(t *testing.T, rt *rapid.T, pools []*bun.DB, p plan) {
	first := newFixture(t, pools[0])
	for _, table := range []string{"bc_outbox_event", "bc_event_consume_log", "bc_delivery_attempt", "effect"} {
		first.exec("DELETE FROM " + table)
	}
	fail := &failing{left: p.failures}
	instances := make([]*fixture, p.instances)
	for i := range instances {
		instances[i] = newFixtureOf(t, pools[i], outbox.Config{DeleteSent: p.deletes})
		instances[i].consumers(fail)
	}
	committed, seq := 0, 0
	for i, aggregates := range p.saves {
		events := make([]bus.Event, len(aggregates))
		for j, a := range aggregates {
			events[j] = orderPaid{OrderID: fmt.Sprint(a), Seq: seq}
			seq++
		}
		from := instances[i%len(instances)]
		err := from.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error {
			if err := from.ob.Save(ctx, tx, events...); err != nil || !p.rollback[i] {
				return err
			}
			return errRolledBack
		})
		if !p.rollback[i] {
			require.NoError(rt, err)
			committed += len(events)
		}
		instances[p.order[i%len(p.order)]%len(instances)].once()
	}
	for round := 0; first.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") > 0; round++ {
		if round == 60 {
			rt.Fatalf("not delivered: %v %v", first.statuses(), first.deliveries())
		}
		first.hurry()
		var all sync.WaitGroup
		for _, f := range instances {
			all.Go(func() { f.once() })
		}
		all.Wait()
	}
	found, err := invariant.Check(context.Background(), first.db, invariant.Config{
		Quiet: true, Effects: invariant.Effects{Table: "effect", Unordered: []string{"Unordered"}},
	})
	require.NoError(rt, err)
	require.Empty(rt, found)
	const consumers = 4
	if p.deletes {
		require.Empty(rt, first.statuses())
	}
	require.Equal(rt, consumers*committed, first.count("SELECT COUNT(*) FROM effect"), "every event once for every consumer")
	require.Equal(rt, consumers*committed, first.count("SELECT COUNT(*) FROM (SELECT DISTINCT consumer, aggregate, seq FROM effect) AS d"))
	require.Zero(rt, first.count("SELECT COUNT(*) FROM (SELECT seq, LAG(seq) OVER (PARTITION BY consumer, aggregate "+
		"ORDER BY id) AS earlier FROM effect WHERE consumer <> 'Unordered') AS o WHERE earlier > seq"), "in order")
}

var errRolledBack = errors.New("rolled back")

func (f *fixture) consumers(fail *failing) {
	one := func(name string, cfg bus.ConsumerConfig) {
		bus.On(f.bus.Consumer(name, cfg), func(ctx context.Context, tx bun.Tx, m bus.Message[orderPaid]) error {
			if err := fail.next(name, m.Payload.Seq); err != nil {
				return err
			}
			return effect(ctx, tx, m, m.Payload.Seq)
		})
	}
	one("Ordered", bus.ConsumerConfig{})
	one("Passing", bus.ConsumerConfig{DeadPolicy: bus.Continue, Batch: 2, Queue: 3})
	one("Unordered", bus.ConsumerConfig{Unordered: true})
	bus.OnBatch(f.bus.Consumer("Batches", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, ms []bus.Message[orderPaid]) error {
		for _, m := range ms {
			if err := fail.next("Batches", m.Payload.Seq); err != nil {
				return err
			}
			if err := effect(ctx, tx, m, m.Payload.Seq); err != nil {
				return err
			}
		}
		return nil
	})
}
