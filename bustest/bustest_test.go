package bustest_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type seatTaken struct {
	Seat string `json:"seat"`
}

func (seatTaken) EventType() string              { return "seat.taken" }
func (e seatTaken) Aggregate() (kind, id string) { return "SEAT", e.Seat }

func count(t *testing.T, db *bun.DB) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM effect").Scan(&n))
	return n
}

// under makes a harness with one exactly-once and one external consumer.
func under(t *testing.T, db *bun.DB, opts ...bustest.Option) (*bustest.Harness, *atomic.Int64) {
	t.Helper()
	h := bustest.New(t, db, opts...)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE effect (seat VARCHAR(64) NOT NULL)")
	require.NoError(t, err)
	bus.On(h.Bus.Consumer("Seats", bus.ConsumerConfig{}), func(ctx context.Context, tx bun.Tx, m bus.Message[seatTaken]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO effect (seat) VALUES (?)", m.Payload.Seat)
		return err
	})
	var mails atomic.Int64
	bus.OnExternal(h.Bus.Consumer("Mail", bus.ConsumerConfig{}), func(context.Context, bus.Message[seatTaken]) error {
		mails.Add(1)
		return nil
	})
	return h, &mails
}

func save(t *testing.T, h *bustest.Harness, db *bun.DB, seats ...string) {
	t.Helper()
	for _, s := range seats {
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return h.Outbox.Save(ctx, tx, seatTaken{Seat: s})
		}))
	}
}

func TestDrainDeliversEverythingTwice(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		h, mails := under(t, db)
		save(t, h, db, "12A")
		require.Equal(t, "12A", bustest.RequireSaved[seatTaken](h).Payload.Seat)
		require.Equal(t, bustest.Report{consumelog.Success: 2}, h.Drain())
		require.Equal(t, 1, count(t, db), "the handler with a tx does not notice")
		require.EqualValues(t, 2, mails.Load(), "the external one is called again")
	})
}

func TestDeliverOnce(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	h, mails := under(t, db, bustest.DeliverOnce())
	bustest.Deliver(h, seatTaken{Seat: "1"})
	h.Drain()
	require.EqualValues(t, 1, mails.Load())
}

// Whatever befalls the first delivery, the effect happens exactly once.
func TestEveryFaultEndsInOneEffect(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]bustest.Fault{
		"failBeforeCommit": bustest.FailBeforeCommit, "failAfterCommit": bustest.FailAfterCommit, "loseLease": bustest.LoseLease,
		"error": bustest.HandlerError, "panic": bustest.HandlerPanic, "reorder": bustest.Reorder, "duplicate": bustest.Duplicate,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				h, mails := under(t, db)
				h.Break(fault)
				save(t, h, db, "1", "2", "3")
				require.Equal(t, bustest.Report{consumelog.Success: 6}, h.Drain())
				require.Equal(t, 3, count(t, db))
				require.GreaterOrEqual(t, mails.Load(), int64(3))
			})
		})
	}
}
