package bus_test

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
)

// A consumer that a release adds gets what was saved before, in the order of its aggregates, and then what comes.
func ExampleBeginning() {
	db, end := openDB()
	defer end()

	before := bus.New(db, bus.Config{})
	bus.On(before.Consumer("Weights", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error { return nil })
	deliver(db, before, parcelShipped{Parcel: "7", Grams: 420}, parcelShipped{Parcel: "7", Grams: 430})

	now := bus.New(db, bus.Config{})
	bus.On(now.Consumer("Weights", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[parcelShipped]) error { return nil })
	bus.On(now.Consumer("Search", bus.ConsumerConfig{StartFrom: bus.Beginning()}),
		func(_ context.Context, _ bun.Tx, m bus.Message[parcelShipped]) error {
			fmt.Println(m.Payload.Grams)
			return nil
		})
	deliver(db, now)
	// Output:
	// 420
	// 430
}
