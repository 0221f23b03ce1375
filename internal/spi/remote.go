// Package spi is what the modules relay, ledger and those in adapter need of the inside beyond what users call.
package spi

import (
	"log/slog"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/remote"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/prepared"
	"github.com/bluecone-go/bluecone/internal/rawevent"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// RawEvent is an event whose payload another program has encoded. outbox.Save takes it.
type RawEvent = rawevent.Event

// Parts are an event and its options, as outbox.With has put them together.
type Parts = rawevent.Parts

// PartsOf takes an event apart.
func PartsOf(event any) Parts {
	if whole, ok := event.(rawevent.Whole); ok {
		return whole.Parts()
	}
	return Parts{Event: event}
}

// RemoteDeliveries leases deliveries to handlers in other programs.
type RemoteDeliveries = remote.Deliveries

type (
	// RemoteConfig says how deliveries are leased.
	RemoteConfig = remote.Config
	// RemoteDelivery is an event that a consumer has been given.
	RemoteDelivery = remote.Delivery
	// RemoteDecision is the answer to a consumer that wants to run an event.
	RemoteDecision = remote.Decision
	// RemoteLease is the right to end a delivery.
	RemoteLease = remote.Lease
	// RemoteFinish is the end of one delivery.
	RemoteFinish = remote.Finish
	// RemoteOutcome is what a consumer says of a delivery.
	RemoteOutcome = remote.Outcome
)

// Errors of [RemoteDeliveries].
var (
	ErrRemoteUnknown = remote.ErrUnknown
	ErrRemoteDead    = remote.ErrDead
	ErrRemoteLost    = remote.ErrLost
)

// NewRemoteDeliveries returns the deliveries of a database, whose outbox keeps events that are SENT.
func NewRemoteDeliveries(db *bun.DB, logger *slog.Logger, lease time.Duration, attempts int, backoff func(attempt int) time.Duration,
) (*RemoteDeliveries, error) {
	d, err := dialect.Of(db)
	if err != nil {
		return nil, err
	}
	metrics, err := telemetry.NewMetrics(nil)
	if err != nil {
		return nil, err
	}
	return remote.New(db, settle.NewSettler(db, d, prepared.New(db), false), settle.NewMeter(metrics, logger), logger,
		remote.Config{Lease: lease, MaxAttempts: attempts, Backoff: backoff})
}
