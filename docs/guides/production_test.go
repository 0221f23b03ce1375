package guides_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/alert"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

func start(ctx context.Context, db *bun.DB, b *bus.Bus, chat alert.Sink) error {
	db.SetMaxOpenConns(20)
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	if err := doctor.Start(ctx, db, doctor.Config{Workers: 8}, slog.Default()); err != nil {
		return err // something is a FAIL: the error says what, and what to do
	}
	ob, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return err
	}
	keep := outbox.RetentionConfig{Keep: 30 * 24 * time.Hour} // the default is 7 days
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{Retention: keep})
	if err != nil {
		return err
	}
	alerts, err := alert.New(db, ob, alert.Config{Service: "shop", Routes: []alert.Route{{Name: "chat", Sink: chat}}})
	if err != nil {
		return err
	}
	return bus.Run(ctx, pub, alerts)
}

// The program of the guide starts, finds its database fit, and ends in order.
func TestProductionStarts(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	b := bus.New(db, bus.Config{})
	handled := make(chan struct{})
	bus.On(b.Consumer("Points", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[OrderPaid]) error {
		close(handled)
		return nil
	})
	require.NoError(t, migrations.Up(t.Context(), db))
	ob, err := outbox.New(db, outbox.Config{})
	require.NoError(t, err)
	save(t, db, ob, OrderPaid{OrderID: "7"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- start(ctx, db, b, alert.SinkFunc(func(context.Context, alert.Notice) error { return nil }))
	}()
	<-handled
	cancel()
	require.NoError(t, <-done)
}

// A database that would lose events ends the start.
func TestProductionRefusesAnUnfitDatabase(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	require.NoError(t, migrations.Up(t.Context(), db))
	exec(t, db, "DROP INDEX bc_outbox_event_idx_aggregate")
	err := start(t.Context(), db, bus.New(db, bus.Config{}), nil)
	require.ErrorIs(t, err, doctor.ErrUnfit)
}
