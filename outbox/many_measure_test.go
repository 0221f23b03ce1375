package outbox_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// What the number of consumers costs: docs/measurements/many-consumers.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -p 1 -parallel 1 -run MeasureManyConsumers ./outbox
func TestMeasureManyConsumers(t *testing.T) { //nolint:paralleltest // it measures
	testdb.Measures(t)
	for _, dialect := range testdb.Dialects() { //nolint:paralleltest // they would measure each other
		for _, n := range []int{20, 200, 2000} {
			t.Run(fmt.Sprint(dialect, "/", n), func(t *testing.T) { measureMany(t, testdb.Open(t, dialect), dialect, n) })
		}
	}
}

func measureMany(t *testing.T, db *bun.DB, name string, n int) {
	t.Helper()
	f := newFixture(t, db)
	f.many(n, new(atomic.Bool))
	f.run(outbox.PublisherConfig{})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM bc_consumer_type") == 2*n }, "they are registered")
	deliver := func(want int, events ...bus.Event) time.Duration {
		began := time.Now()
		f.save(events...)
		f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == want }, "they are delivered")
		return time.Since(began) / time.Duration(n)
	}
	own := make([]bus.Event, n)
	for i := range own {
		own[i] = anyType{Type: manyType(i), ID: fmt.Sprint(i)}
	}
	perOwn := deliver(n, own...)
	perAll := deliver(2*n, anyType{Type: "many.all", ID: "all"})

	d, err := dialect.Of(db)
	require.NoError(t, err)
	stmts := prepared.New(db)
	due := average(t, func() error { _, err := store.NewQueues(d, stmts).DueConsumers(t.Context(), db); return err })
	look := average(t, func() error { _, _, err := store.NewRegistry(d, stmts).Look(t.Context(), db); return err })
	gauges := average(t, func() error { _, err := store.NewQueues(d, stmts).Backlogs(t.Context(), db); return err })
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	t.Logf("| %s | %d | %v | %v | %v | %v | %v | %d MB | %d |", name, n, round(perOwn), round(perAll), round(due), round(look),
		round(gauges), mem.HeapAlloc>>20, runtime.NumGoroutine())
}

func average(t *testing.T, fn func() error) time.Duration {
	t.Helper()
	const times = 20
	began := time.Now()
	for range times {
		require.NoError(t, fn())
	}
	return time.Since(began) / times
}
