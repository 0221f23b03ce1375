package bus_test

import (
	"context"
	"fmt"

	"github.com/bluecone-go/bluecone/bus"
)

// A handler with SQL of its own, here as sqlc would write it for SQLite. On PostgreSQL its placeholders are $1, $2.
func ExampleOnSQL() {
	db, end := openWeights()
	defer end()

	b := bus.New(db, bus.Config{})
	bus.OnSQL(b.Consumer("Weights", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, m bus.Message[parcelShipped]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO weights (parcel, grams) VALUES (?, ?)", m.Payload.Parcel, m.Payload.Grams)
		if err != nil {
			return err
		}
		var total int
		if err := tx.QueryRowContext(ctx, "SELECT SUM(grams) FROM weights").Scan(&total); err != nil {
			return err
		}
		fmt.Println(total, "grams until now")
		return nil
	})
	deliver(db, b, parcelShipped{Parcel: "7", Grams: 420}, parcelShipped{Parcel: "7", Grams: 80})
	// Output:
	// 420 grams until now
	// 500 grams until now
}

// A batch handler prepares a statement once for all its events.
func ExampleOnSQLBatch() {
	db, end := openWeights()
	defer end()

	b := bus.New(db, bus.Config{})
	bus.OnSQLBatch(b.Consumer("Weights", bus.ConsumerConfig{}), func(ctx context.Context, tx bus.Tx, ms []bus.Message[parcelShipped]) error {
		insert, err := tx.PrepareContext(ctx, "INSERT INTO weights (parcel, grams) VALUES (?, ?)")
		if err != nil {
			return err
		}
		defer insert.Close()
		for _, m := range ms {
			if _, err := insert.ExecContext(ctx, m.Payload.Parcel, m.Payload.Grams); err != nil {
				return err
			}
		}
		return nil
	})
	deliver(db, b, parcelShipped{Parcel: "7", Grams: 420}, parcelShipped{Parcel: "8", Grams: 80})
	var total int
	must(db.NewRaw("SELECT SUM(grams) FROM weights").Scan(context.Background(), &total))
	fmt.Println(total, "grams")
	// Output:
	// 500 grams
}
