package crash_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

const envLoop = "BLUECONE_CRASH_LOOP" // the database of a process that one delivery kills

const (
	killer      = "killer" // the order whose event kills the process
	loopOrders  = 40
	loopTries   = 3
	loopLimit   = 2 * time.Minute
	loopTimeout = time.Minute
)

// loop is a process that lives until a delivery kills it.
func loop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, loopTimeout)
	defer cancel()
	db, err := testdb.Connect(os.Getenv(envLoop))
	if err != nil {
		return err
	}
	defer db.Close()
	p, _, err := killedByOne(db)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// killedByOne has two consumers; one event kills the process that gives it to one of them.
func killedByOne(db *bun.DB) (*outbox.Publisher, *outbox.Outbox, error) {
	quiet := slog.New(slog.DiscardHandler)
	ob, err := outbox.New(db, outbox.Config{Logger: quiet, Instance: "looping", MaxRetryCount: loopTries})
	if err != nil {
		return nil, nil, err
	}
	b := bus.New(db, bus.Config{Logger: quiet})
	bus.On(b.Consumer("Killed", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
		if m.AggregateID == killer {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // the handler is slow, so that others are under way when it dies
		return nil
	})
	bus.OnExternal(b.Consumer("Beside", bus.ConsumerConfig{}), func(context.Context, bus.Message[paid]) error {
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // likewise
		return nil
	})
	p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{Poll: 20 * time.Millisecond, Lease: 20 * time.Second})
	return p, ob, err
}

// In a crash loop only the delivery that kills ends DEAD, whatever else was leased or running each time; and a process
// that is restarted under its name goes on at once with what the dead one had in flight.
func TestOnlyWhatKillsEndsDead(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		for name, waiting := range map[string]bool{"new events": false, "waiting deliveries": true} {
			t.Run(dialect+"/"+name, func(t *testing.T) {
				t.Parallel()
				loopUntilQuiet(t, dialect, waiting)
			})
		}
	}
}

func loopUntilQuiet(t *testing.T, dialect string, waiting bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), loopLimit)
	defer cancel()
	dsn := testdb.DSN(t, dialect)
	db := testdb.OpenDSN(t, dsn)
	require.NoError(t, migrations.Up(ctx, db))
	_, ob, err := killedByOne(db)
	require.NoError(t, err)
	for i := range loopOrders {
		e := paid{Order: strings.Repeat("x", i+1), Seq: i}
		if i == loopOrders/2 {
			e.Order = killer
		}
		require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return ob.Save(ctx, tx, e) }))
	}
	if waiting {
		for _, q := range []string{
			"INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, outbox_id, aggregate_type, aggregate_id, attempts, " +
				"next_retry_at) " +
				"SELECT c.name, e.event_id, e.event_type, 'PENDING', e.id, e.aggregate_type, e.aggregate_id, 0, e.created_at " +
				"FROM bc_outbox_event e CROSS JOIN (SELECT 'Killed' AS name UNION SELECT 'Beside') AS c",
			"UPDATE bc_outbox_event SET status = 'FAILED'",
		} {
			_, err := db.ExecContext(ctx, q)
			require.NoError(t, err)
		}
	}
	count := func(query string) (n int) {
		require.NoError(t, db.NewRaw(query).Scan(ctx, &n), query)
		return n
	}
	kills := liveAndDie(ctx, t, dsn, func() bool {
		return count("SELECT COUNT(*) FROM bc_outbox_event WHERE status NOT IN ('SENT', 'DEAD')") == 0
	})
	require.Equal(t, 1, count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'DEAD' AND consumer_name = 'Killed' "+
		"AND aggregate_id = '"+killer+"'"))
	require.Equal(t, 2*loopOrders-1, count("SELECT COUNT(*) FROM bc_event_consume_log WHERE status = 'SUCCESS'"))
	require.LessOrEqual(t, kills, loopTries+1, "by the event or by the delivery in a batch, and by each of its attempts")
	require.Equal(t, loopTries, count("SELECT COUNT(*) FROM bc_delivery_attempt WHERE outcome = 'PROCESSING' AND consumer_name = 'Killed' "+
		"AND event_id = (SELECT event_id FROM bc_outbox_event WHERE aggregate_id = '"+killer+"')"))
	found, err := invariant.Check(ctx, db, invariant.Config{})
	require.NoError(t, err)
	require.Empty(t, found)
}

// liveAndDie starts a process again and again, until all is quiet, and tells how often it was killed.
func liveAndDie(ctx context.Context, t *testing.T, dsn string, quiet func() bool) (kills int) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	for {
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), envLoop+"="+dsn)
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for done := false; !done; {
			select {
			case err := <-ended:
				require.ErrorContains(t, err, "killed")
				require.NoError(t, ctx.Err(), "it comes to an end; killed %d times", kills)
				kills++
				done = true
			case <-time.After(50 * time.Millisecond): // a look at the tables now and then
				if quiet() {
					require.NoError(t, cmd.Process.Kill())
					<-ended
					return kills
				}
			}
		}
	}
}
