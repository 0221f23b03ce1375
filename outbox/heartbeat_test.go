package outbox_test

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// A publisher says that it runs, forgets instances that were last seen days ago, and takes its word
// back when it stops as it should.
func TestAnInstanceIsAnnouncedWhileItRuns(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.counting("A", bus.ConsumerConfig{})
		old := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 25 HOUR", "pg": "now() - interval '25 hours'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-25 hours') || '000')",
		}[db.Dialect().Name().String()]
		f.exec("INSERT INTO bc_instance (name, host, version, in_flight, clock_offset_us, draining, seen_at) " +
			"VALUES ('crashed', 'h', 'v', 1, 0, 0, " + old + ")")
		stop, ended := f.begin(outbox.PublisherConfig{})
		f.eventually(func() bool {
			return f.count("SELECT COUNT(*) FROM bc_instance WHERE name = ? AND draining = 0", f.ob.Instance()) == 1
		}, "it is announced")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_instance"), "and the one of the day before yesterday forgotten")
		stop()
		require.NoError(t, <-ended)
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_instance"))
	})
}

// A consumer whose service is away is known to be so in the whole deployment.
func TestAnOpenCircuitIsAnnounced(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	f := newFixture(t, db)
	away := errors.Join(errors.New("send"), &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	bus.OnExternal(f.bus.Consumer("Sms", bus.ConsumerConfig{}), func(context.Context, bus.Message[orderPaid]) error { return away })
	for _, id := range ids(5) {
		f.save(orderPaid{OrderID: id})
	}
	f.run(outbox.PublisherConfig{Poll: 20 * time.Millisecond})
	f.eventually(func() bool { return f.count("SELECT COUNT(*) FROM bc_instance WHERE circuits = 'Sms'") == 1 }, "at the next beat")
}
