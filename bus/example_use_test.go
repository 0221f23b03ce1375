package bus_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/outbox"
)

// A line in the log for every call of a handler, whatever its kind.
func ExampleBus_Use_logging() {
	db, end := openDB()
	defer end()
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: withoutTime}))

	b := bus.New(db, bus.Config{})
	b.Use(func(next bus.HandlerFunc) bus.HandlerFunc {
		return func(ctx context.Context, ms []bus.Message[bus.Event]) error {
			err := next(ctx, ms)
			logger.InfoContext(ctx, "handled", "consumer", ms[0].Consumer, "type", ms[0].Type, "events", len(ms), "err", err)
			return err
		}
	})
	bus.OnBatch(b.Consumer("Totals", bus.ConsumerConfig{}), func(context.Context, bun.Tx, []bus.Message[parcelShipped]) error { return nil })
	deliver(db, b, parcelShipped{Parcel: "7", Grams: 420}, parcelShipped{Parcel: "8", Grams: 80})
	// Output:
	// level=INFO msg=handled consumer=Totals type=parcel.shipped events=2 err=<nil>
}

// parcelWeighed says what a parcel weighs.
type parcelWeighed struct {
	Parcel string
	Grams  int
}

func (parcelWeighed) EventType() string              { return "parcel.weighed" }
func (e parcelWeighed) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }

// tenantKey is under what the application's own code looks for the tenant in a context.
type tenantKey struct{}

// The tenant of the event in the context, where the application's own code looks for it. The messages of a batch handler may be of
// several tenants: then none is in the context, and the handler takes that of each message.
func ExampleBus_Use_tenant() {
	db, end := openDB()
	defer end()
	b := bus.New(db, bus.Config{})
	b.Use(func(next bus.HandlerFunc) bus.HandlerFunc {
		return func(ctx context.Context, ms []bus.Message[bus.Event]) error {
			tenant := ms[0].TenantID
			for _, m := range ms {
				if m.TenantID != tenant {
					return next(ctx, ms)
				}
			}
			return next(context.WithValue(ctx, tenantKey{}, tenant), ms)
		}
	})
	bus.OnSQL(b.Consumer("Labels", bus.ConsumerConfig{}), func(ctx context.Context, _ bus.Tx, m bus.Message[parcelShipped]) error {
		fmt.Println("parcel", m.Payload.Parcel, "of tenant", ctx.Value(tenantKey{}))
		return nil
	})
	bus.OnBatch(b.Consumer("Totals", bus.ConsumerConfig{}), func(ctx context.Context, _ bun.Tx, ms []bus.Message[parcelWeighed]) error {
		fmt.Println(len(ms), "weights of tenant", ctx.Value(tenantKey{}))
		return nil
	})
	of := func(tenant int64, e bus.Event) bus.Event { return outbox.With(e, outbox.Tenant(tenant, 0)) }
	deliver(db, b, of(12, parcelShipped{Parcel: "7", Grams: 420}))
	deliver(db, b, of(12, parcelWeighed{Parcel: "8", Grams: 80}), of(12, parcelWeighed{Parcel: "9", Grams: 100}))
	deliver(db, b, of(12, parcelWeighed{Parcel: "10", Grams: 80}), of(13, parcelWeighed{Parcel: "11", Grams: 100}))
	// Output:
	// parcel 7 of tenant 12
	// 2 weights of tenant 12
	// 2 weights of tenant <nil>
}

// Validate refuses a parcel without a weight.
func (e parcelShipped) Validate() error {
	if e.Grams <= 0 {
		return errors.New("a parcel has a weight")
	}
	return nil
}

// Payloads that know whether they are valid are asked before their handler. No further attempt would make them valid.
func ExampleBus_Use_validator() {
	db, end := openDB()
	defer end()
	b := bus.New(db, bus.Config{
		Logger:       slog.New(slog.DiscardHandler),
		OnDeadLetter: func(_ context.Context, d bus.DeadLetter) { fmt.Println("DEAD:", d.Error) },
	})
	b.Use(func(next bus.HandlerFunc) bus.HandlerFunc {
		return func(ctx context.Context, ms []bus.Message[bus.Event]) error {
			for _, m := range ms {
				if v, ok := m.Payload.(interface{ Validate() error }); ok {
					if err := v.Validate(); err != nil {
						return bus.Permanent(err)
					}
				}
			}
			return next(ctx, ms)
		}
	})
	bus.On(b.Consumer("Weights", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error { return nil })
	deliver(db, b, parcelShipped{Parcel: "7"})
	// Output:
	// DEAD: a parcel has a weight
}

// A consumer with a rhythm of its own: after a minute, after ten, and then every hour.
func ExampleConsumerConfig_backoff() {
	db, end := openDB()
	defer end()
	cfg := bus.ConsumerConfig{Backoff: func(attempt int) time.Duration {
		return []time.Duration{time.Minute, 10 * time.Minute, time.Hour}[min(attempt, 3)-1]
	}}
	b := bus.New(db, bus.Config{})
	bus.OnExternal(b.Consumer("Courier", cfg), func(context.Context, bus.Message[parcelShipped]) error { return nil })
	fmt.Println(b.Err(), cfg.Backoff(1), cfg.Backoff(2), cfg.Backoff(9))
	// Output:
	// <nil> 1m0s 10m0s 1h0m0s
}
