package spi

import (
	"context"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Reservations are events that nobody sees until they are confirmed.
type Reservations = store.Reservations

// Reservation is one of them.
type Reservation = store.Reservation

// The states of a reservation.
const (
	Prepared  = store.Prepared
	Confirmed = store.Confirmed
	Canceled  = store.Canceled
)

// NewReservations returns the reservations of a database.
func NewReservations(db *bun.DB) (Reservations, error) {
	d, err := dialect.Of(db)
	return store.NewReservations(d), err
}

// InTx runs a short READ COMMITTED transaction.
func InTx(ctx context.Context, db *bun.DB, fn func(ctx context.Context, tx bun.Tx) error) error {
	d, err := dialect.Of(db)
	if err != nil {
		return err
	}
	return db.RunInTx(ctx, d.ReadCommitted(), fn)
}

// Consumption is a delivery, for people.
type Consumption = store.DeliveryRow

// Consumptions are the deliveries of an event, and its status: "" if it is unknown.
func Consumptions(ctx context.Context, db *bun.DB, eventID string) (status string, of []Consumption, err error) {
	d, err := dialect.Of(db)
	if err != nil {
		return "", nil, err
	}
	rows, _, err := store.EventsByID(ctx, db, d, []string{eventID}, func(int) bool { return true })
	if err != nil {
		return "", nil, err
	}
	if len(rows) > 0 {
		status = rows[0].Status
	}
	of, err = store.NewResults(d).OfEvents(ctx, db, []string{eventID})
	return status, of, err
}

// Backlog is what a consumer has before it.
type Backlog = store.Backlog

// BacklogOf measures it.
func BacklogOf(ctx context.Context, db *bun.DB, consumer string) (Backlog, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return Backlog{}, err
	}
	return store.NewResults(d).Backlog(ctx, db, consumer)
}

// DueConsumers are those for which a delivery is due, by one statement.
func DueConsumers(ctx context.Context, db *bun.DB) ([]string, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	return store.NewQueues(d, prepared.New(db)).DueConsumers(ctx, db)
}
