package outbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestPublishesToEveryConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		for _, name := range []string{"A", "B", "C"} {
			f.counting(name, bus.ConsumerConfig{})
		}
		for _, id := range ids(50) {
			f.save(orderPaid{OrderID: id, Seq: 1}, orderPaid{OrderID: id, Seq: 2})
		}
		r := f.once()
		require.Equal(t, 100, r.Claimed)
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 100}, f.statuses())
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: 300}, f.deliveries())
		require.Equal(t, 300, f.count("SELECT COUNT(*) FROM effect"))
		require.Zero(t, f.count("SELECT COUNT(*) FROM effect a JOIN effect b ON b.consumer = a.consumer AND b.aggregate = a.aggregate "+
			"AND b.id > a.id AND b.seq < a.seq"), "out of order")
	})
}

func TestWakesAfterCommit(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("A", bus.ConsumerConfig{})
		looks := lookCounter{text: lookForDue}
		f.db.AddQueryHook(&looks) //nolint:staticcheck // the engine's own pool is the point
		f.run(neverPolls)
		for i := range 2 { // the first may be found by the look at the start
			f.save(orderPaid{OrderID: "1"})
			f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM effect") == i+1 }, "delivered without a poll")
			rests := func() bool { return looks.n.Load() > 0 && time.Since(time.Unix(0, looks.last.Load())) > time.Second }
			f.eventually(rests, "the look that follows work has found nothing")
		}
	})
}
