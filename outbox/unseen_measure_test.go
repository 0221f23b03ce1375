package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// How long after the commit of a transaction its handler starts: docs/measurements/foreign-commits.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -run MeasureForeignCommits ./outbox
func TestMeasureForeignCommits(t *testing.T) { //nolint:paralleltest // it measures
	testdb.Measures(t)
	for _, name := range testdb.Dialects() { //nolint:paralleltest // they would measure each other
		for _, way := range []string{"db.RunInTx", "bun.Tx", "*sql.Tx", elsewhere} {
			if way == elsewhere && name != "postgres" {
				continue
			}
			t.Run(name+"/"+way, func(t *testing.T) { measureCommits(t, name, way) })
		}
	}
}

// elsewhere is the way of an event that another instance saves and notifies of.
const elsewhere = "another instance, with Notify"

// commitTimes are the times between a commit and its handler, by the numbers of the events.
type commitTimes struct {
	mu        sync.Mutex
	committed map[int]time.Time
	began     map[int]time.Time
}

func (l *commitTimes) all() (d []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, at := range l.began {
		d = append(d, max(0, at.Sub(l.committed[n])))
	}
	slices.Sort(d)
	return d
}

// committed saves in a transaction of its own, by db.RunInTx without a way to begin one.
func (f *fixture) committed(begin func() outbox.Tx) func(events ...bus.Event) error {
	if begin == nil {
		return f.trySave
	}
	return func(events ...bus.Event) error {
		tx := begin()
		return errors.Join(f.ob.Save(f.t.Context(), tx, events...), tx.Commit())
	}
}

// measureCommits saves 200 events a second for ten seconds, each in a transaction of its own.
func measureCommits(t *testing.T, name, way string) {
	t.Helper()
	const perSecond, seconds = 200, 10
	dsn := testdb.DSN(t, name)
	f := newFixture(t, migrated(t, dsn))
	saver, cfg := f, outbox.PublisherConfig{Notify: way == elsewhere}
	if way == elsewhere {
		saver = f.another(dsn)
		saver.publisher(cfg)
	}
	save := saver.committed(txKinds(t, name, dsn, f.db)[way])
	l := commitTimes{committed: make(map[int]time.Time), began: make(map[int]time.Time)}
	bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
		now := time.Now()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.began[m.Payload.Seq] = now
		return nil
	})
	f.run(cfg)
	tick := time.NewTicker(time.Second / perSecond)
	defer tick.Stop()
	for n := range perSecond * seconds {
		<-tick.C
		require.NoError(t, save(orderPaid{OrderID: fmt.Sprint(n), Seq: n}))
		l.mu.Lock()
		l.committed[n] = time.Now()
		l.mu.Unlock()
	}
	f.eventually(func() bool { return len(l.all()) == perSecond*seconds }, "all are delivered")
	d := l.all()
	t.Logf("| %s | %s | %v | %v | %v |", name, way, d[len(d)/2].Round(10*time.Microsecond), d[len(d)*95/100].Round(10*time.Microsecond),
		d[len(d)*99/100].Round(10*time.Microsecond))
}
