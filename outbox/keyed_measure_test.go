package outbox_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// What it would cost to lock one of 1,024 rows before each keyed Save: docs/measurements/keyed-saves.md.
//
//	BLUECONE_TEST_MEASURE=1 BLUECONE_TEST_ONLY=mysql,mysql9 go test -count=1 -v -run MeasureLockSlots ./outbox
func TestMeasureLockSlots(t *testing.T) { //nolint:paralleltest // it measures
	testdb.Measures(t)
	for _, name := range testdb.Servers() { //nolint:paralleltest // they would measure each other
		if testdb.Dialect(name) != "mysql" {
			continue
		}
		for _, slots := range []int{0, 1024} {
			t.Run(fmt.Sprint(name, "/", slots), func(t *testing.T) { measureSlots(t, testdb.Open(t, name), name, slots) })
		}
	}
}

// measureSlots lets eight writers save keyed events that nobody else saves, by two calls a transaction.
func measureSlots(t *testing.T, db *bun.DB, name string, slots int) {
	t.Helper()
	f := newFixture(t, db)
	f.exec("CREATE TABLE slot (id INT PRIMARY KEY) ENGINE=InnoDB")
	for i := range slots {
		f.exec("INSERT INTO slot (id) VALUES (?)", i)
	}
	const writers, each = 8, 250
	var deadlocks atomic.Int64
	waits := func() (n int) {
		var what string
		require.NoError(t, db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'").Scan(&what, &n))
		return n
	}
	before, began := waits(), time.Now()
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range each {
				err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
					for call := range 2 {
						if err := lockSlots(ctx, tx, rnd, slots); err != nil {
							return err
						}
						var events []bus.Event
						for k := range 2 {
							events = append(events, keyedPaid{orderPaid{OrderID: fmt.Sprint(w, "-", i, "-", call, "-", k)}})
						}
						if err := f.ob.Save(ctx, tx, events...); err != nil {
							return err
						}
					}
					return nil
				})
				if dialect.Classify(err) == dialect.TxRetry {
					deadlocks.Add(1)
					err = nil
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	t.Logf("| %s | %d | %d | %d | %d | %v |", name, slots, writers*each, waits()-before, deadlocks.Load(),
		time.Since(began).Round(10*time.Millisecond))
}

// lockSlots locks the slots of two keys; the database does so in their order.
func lockSlots(ctx context.Context, tx bun.Tx, rnd *rand.Rand, slots int) error {
	if slots == 0 {
		return nil
	}
	of := []string{fmt.Sprint(rnd.IntN(slots)), fmt.Sprint(rnd.IntN(slots))}
	_, err := tx.ExecContext(ctx, "SELECT id FROM slot WHERE id IN ("+strings.Join(of, ", ")+") FOR UPDATE")
	return err
}
