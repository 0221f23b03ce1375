package store

import (
	"context"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Brokers are the rows of bc_broker: what each instance of a relay or an inbox knows of its broker. There are few, found by their primary
// key.
type Brokers struct{ d dialect.Dialect }

// NewBrokers returns the statements in the words of a database.
func NewBrokers(d dialect.Dialect) Brokers { return Brokers{d} }

// The roles of an instance at a broker.
const (
	RoleRelay = "RELAY"
	RoleInbox = "INBOX"
)

// What is known of the way to a broker.
const (
	BrokerConnected = "CONNECTED" // it has answered
	BrokerAway      = "AWAY"      // it does not answer
	BrokerRefuses   = "REFUSES"   // it answers, and a person has to change something
	BrokerUnknown   = "UNKNOWN"   // nobody has asked yet
)

// BrokerBeat is how often an instance writes what it knows at the least.
const BrokerBeat = 15 * time.Second

// Broker is what an instance knows of one.
type Broker struct {
	Role, Name  string // of the relay or the inbox
	Broker      string // where it is, without credentials
	State       string
	Window      int   // messages that may be unconfirmed, 0 where that means nothing
	Unconfirmed int   // messages that are
	Behind      int64 // messages that the broker still has for the inbox, -1 where nobody knows
	Error       string
	ErrorAt     time.Time // by the clock of the process
}

const ofInstance = "role = ? AND name = ? AND instance = ?"

// Put writes what an instance knows.
func (s Brokers) Put(ctx context.Context, idb bun.IDB, instance string, b Broker) error {
	var behind any
	if b.Behind >= 0 {
		behind = b.Behind
	}
	failedAt, args := "NULL", []any{b.Role, b.Name, instance, b.Broker, b.State, b.Window, b.Unconfirmed, behind, nullText(b.Error)}
	if b.Error != "" {
		failedAt, args = s.d.After, append(args, -dialect.Micro(time.Since(b.ErrorAt)))
	}
	_, err := idb.ExecContext(ctx, "INSERT INTO bc_broker (role, name, instance, broker, state, window_size, unconfirmed, behind, "+
		"last_error, last_error_at, seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "+failedAt+", "+s.d.Now+")"+
		s.d.Upsert("role, name, instance", "broker", "state", "window_size", "unconfirmed", "behind", "last_error", "last_error_at", "seen_at"),
		args...)
	if err != nil {
		return fmt.Errorf("note the broker of %s: %w", b.Name, err)
	}
	return nil
}

// Remove deletes the row of an instance that ends in order.
func (s Brokers) Remove(ctx context.Context, idb bun.IDB, instance string, b Broker) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_broker WHERE "+ofInstance, b.Role, b.Name, instance)
	if err != nil {
		return fmt.Errorf("remove the broker of %s: %w", b.Name, err)
	}
	return nil
}

// Forget deletes the rows that were last written longer ago than age.
func (s Brokers) Forget(ctx context.Context, idb bun.IDB, age time.Duration) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_broker WHERE seen_at < "+s.d.After, -dialect.Micro(age))
	if err != nil {
		return fmt.Errorf("forget brokers: %w", err)
	}
	return nil
}

// Heard notes what the broker, or the way to it, has answered: nil that all is well; then the last error stays, with its time.
func (b *Broker) Heard(err error, isRefused bool) {
	switch {
	case err == nil:
		b.State = BrokerConnected
		return
	case isRefused:
		b.State = BrokerRefuses
	default:
		b.State = BrokerAway
	}
	b.Failed(err)
}

// Failed keeps an error that says nothing about the way to the broker.
func (b *Broker) Failed(err error) { b.Error, b.ErrorAt = err.Error(), time.Now() }
