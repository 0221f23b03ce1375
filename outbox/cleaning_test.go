package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// aged has three events of eight days ago, of which one is DEAD, and one of today. A turn of the retention was missed.
func aged(t *testing.T, db *bun.DB) *fixture {
	t.Helper()
	f := newFixture(t, db)
	bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
		if m.Payload.Seq == 13 {
			return bus.Permanent(errHandler)
		}
		return nil
	})
	f.save(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2", Seq: 13}, orderPaid{OrderID: "3"})
	f.once()
	past := f.daysBack(8)
	f.exec("UPDATE bc_outbox_event SET created_at = " + past + ", sent_at = CASE WHEN status = 'SENT' THEN " + past + " END")
	f.exec("INSERT INTO bc_job_lease (job_code, last_due_at) VALUES ('" + outbox.RetentionJob + "', " + past + ")")
	f.save(orderPaid{OrderID: "4"})
	return f
}

// runUntil runs a publisher until something is reached, and drains it.
func (f *fixture) runUntil(p *outbox.Publisher, reached func() bool, what string) {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	f.eventually(reached, what)
	stop()
	require.NoError(f.t, <-done)
}

func (f *fixture) runsOfRetention() int {
	f.t.Helper()
	return f.count("SELECT COUNT(*) FROM bc_job_run WHERE job_code = '" + outbox.RetentionJob + "' AND status = 'SUCCESS'")
}

// A publisher of which nothing is configured removes what was delivered more than seven days ago, and nothing else.
func TestPublisherRemovesWhatIsOld(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := aged(t, db)
		p, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
		require.NoError(t, err)
		f.runUntil(p, func() bool {
			return f.runsOfRetention() >= 1 && f.statuses()[outbox.StatusSent] == 1
		}, "two of three SENT events are gone, and the one of today is delivered")
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 1, outbox.StatusDead: 1}, f.statuses())
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_event_consume_log"))
	})
}

// What the publisher is told is what it does: here, ten days, so that everything stays.
func TestPublisherKeepsForAsLongAsItIsTold(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := aged(t, db)
		f.runUntil(f.publisher(outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: 10 * 24 * time.Hour}}),
			func() bool { return f.runsOfRetention() >= 1 && f.statuses()[outbox.StatusSent] == 3 }, "it has looked, and removed nothing")
	})
}

// A negative Keep turns it off, and so does a retention that the program has made by itself: its policy holds.
func TestPublisherWithoutRetentionRemovesNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := aged(t, db)
		delivered := func() bool { return f.statuses()[outbox.StatusSent] == 3 }
		f.runUntil(f.publisher(outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: -1}}), delivered, "the event of today is delivered")
		require.Zero(t, f.runsOfRetention())

		byDefault, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
		require.NoError(t, err)
		own, err := outbox.NewRetention(f.ob, outbox.RetentionConfig{Keep: 30 * 24 * time.Hour})
		require.NoError(t, err)
		f.save(orderPaid{OrderID: "5"})
		f.runUntil(byDefault, func() bool { return f.statuses()[outbox.StatusSent] == 4 }, "the next event is delivered")
		require.Zero(t, f.runsOfRetention())
		removed, err := own.RunOnce(t.Context())
		require.NoError(t, err)
		require.Zero(t, removed)

		both := f.publisher(outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: time.Hour}})
		ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience()) // of a publisher that does run
		defer cancel()
		require.ErrorContains(t, both.Run(ctx), "outbox.PublisherConfig.Retention is set, and outbox.NewRetention has made another")
	})
}

// Mistakes of the retention are those of the publisher.
func TestPublisherRefusesABadRetention(t *testing.T) {
	t.Parallel()
	f := newFixture(t, testdb.Open(t, "sqlite"))
	_, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{Retention: outbox.RetentionConfig{Keep: time.Second, Batch: -1}})
	require.ErrorContains(t, err, "outbox.PublisherConfig.Retention: outbox.RetentionConfig.Batch is -1")
	require.ErrorContains(t, err, "outbox.RetentionConfig.Keep is 1s")
}
