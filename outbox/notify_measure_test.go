package outbox_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// What it costs the producers that their transactions notify: docs/measurements/notify.md.
//
//	BLUECONE_TEST_MEASURE=1 go test -count=1 -v -run MeasureNotify ./outbox
func TestMeasureNotify(t *testing.T) { //nolint:paralleltest // it measures
	testdb.Measures(t)
	for _, writers := range []int{1, 16} {
		dsn := testdb.DSN(t, "postgres")
		saver := newFixture(t, migrated(t, dsn))
		saver.db.SetMaxOpenConns(writers)
		saver.db.SetMaxIdleConns(writers)
		notifying := saver.another(dsn)
		notifying.db.SetMaxOpenConns(writers)
		notifying.db.SetMaxIdleConns(writers)
		notifying.publisherOf(writers)
		for round := range 3 { // in turn: the machine does other things too
			quiet, loud := measureSaves(t, saver, writers), measureSaves(t, notifying, writers)
			t.Logf("| %d | %d | %.0f | %.0f | %.2f |", writers, round+1, quiet, loud, loud/quiet)
		}
	}
}

// publisherOf makes Save notify.
func (f *fixture) publisherOf(writers int) {
	f.t.Helper()
	f.db.SetMaxOpenConns(writers + 1)
	f.publisher(outbox.PublisherConfig{Notify: true})
	f.db.SetMaxOpenConns(writers)
}

// measureSaves lets writers save for three seconds, an event a transaction, and tells how many they save in a second.
func measureSaves(t *testing.T, f *fixture, writers int) float64 {
	t.Helper()
	var g errgroup.Group
	var n atomic.Int64
	began := time.Now()
	for w := range writers {
		g.Go(func() error {
			for i := 0; time.Since(began) < 3*time.Second; i++ {
				if err := f.trySave(orderPaid{OrderID: fmt.Sprint(w), Seq: i}); err != nil {
					return err
				}
				n.Add(1)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	return float64(n.Load()) / time.Since(began).Seconds()
}
