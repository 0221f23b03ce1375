package service

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
)

const (
	// centsPerStamp is what an order has to come to for each stamp.
	centsPerStamp = 1000
	// refundRetry is how often a refund looks whether its order is known yet.
	refundRetry = 300 * time.Millisecond
	// idLimit is how many bytes an id may have.
	idLimit = 64
)

// stamps are those of all users, one row for each order.
type stamps struct {
	db *bun.DB
	d  database.Dialect
}

// table's unique key is the index for the stamps of a user.
const table = `CREATE TABLE IF NOT EXISTS loyalty_order (order_id VARCHAR(64) PRIMARY KEY, user_id VARCHAR(64) NOT NULL,
	stamps BIGINT NOT NULL, refund_id VARCHAR(64) NOT NULL, UNIQUE (user_id, order_id))`

// create makes the table, also when several instances start at once.
func (s *stamps) create(ctx context.Context) (err error) {
	statement := table
	if s.d.Name == "mysql" {
		statement += " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
	}
	for range 10 {
		if _, err = s.db.ExecContext(ctx, statement); err == nil {
			return nil
		}
		select { // another instance creates the same
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("create the table loyalty_order: %w", err)
}

// of counts the stamps of a user; one who is not known has none.
func (s *stamps) of(ctx context.Context, userID string) (n int64, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT COALESCE(SUM(stamps), 0) FROM loyalty_order WHERE user_id = ? AND refund_id = ''", userID).Scan(&n)
	return n, err
}

// register makes the stamps follow the orders.
func (s *stamps) register(b *bus.Bus) {
	// A refund waits for its order for as long as it takes.
	c := b.Consumer("Stamps", bus.ConsumerConfig{MaxAge: -1})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error { return s.give(ctx, tx, m.Payload) })
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[refunded]) error {
		return s.takeBack(ctx, tx, m.Payload)
	})
}

// give notes the stamps of an order.
func (s *stamps) give(ctx context.Context, tx bun.Tx, e paid) error {
	err := errors.Join(input.Text("orderId", e.OrderID, idLimit), input.Text("userId", e.UserID, idLimit))
	if e.TotalCents < 0 {
		err = errors.Join(err, fmt.Errorf("totalCents is %d: it must not be negative", e.TotalCents))
	}
	if err != nil {
		return bus.Permanent(err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO loyalty_order (order_id, user_id, stamps, refund_id) VALUES (?, ?, ?, '')"+
		s.d.Ignore("order_id"), e.OrderID, e.UserID, e.TotalCents/centsPerStamp)
	return err
}

// takeBack voids the stamps of an order. The refund does not say how many they were.
func (s *stamps) takeBack(ctx context.Context, tx bun.Tx, e refunded) error {
	if err := errors.Join(input.Text("orderId", e.OrderID, idLimit), input.Text("refundId", e.RefundID, idLimit)); err != nil {
		return bus.Permanent(err)
	}
	var known string
	err := tx.QueryRowContext(ctx, "SELECT order_id FROM loyalty_order WHERE order_id = ?", e.OrderID).Scan(&known)
	if errors.Is(err, sql.ErrNoRows) {
		return bus.RetryAfter(fmt.Errorf("order %s is not known to be paid yet", e.OrderID), refundRetry)
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE loyalty_order SET refund_id = ? WHERE order_id = ?", e.RefundID, e.OrderID)
	return err
}
