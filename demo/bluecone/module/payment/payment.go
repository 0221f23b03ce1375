// Package payment keeps the payment callbacks. The provider repeats them until they are
// answered, so each payment number is recorded once.
package payment

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"
)

// ErrOther means that the payment number belongs to another order.
var ErrOther = errors.New("the payment number belongs to another order")

// Facade is what other modules may do with payments.
type Facade struct{}

// New returns the payments.
func New() *Facade { return &Facade{} }

// Record notes a payment of an order, once, in the transaction of what it causes.
func (f *Facade) Record(ctx context.Context, tx bun.Tx, payNo, orderID string) error {
	known, err := f.orderOf(ctx, tx, payNo)
	switch {
	case err != nil:
		return err
	case known == orderID:
		return nil
	case known != "":
		return fmt.Errorf("payment %s: %w", payNo, ErrOther)
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO demo_payment (pay_no, order_id) VALUES (?, ?)", payNo, orderID); err != nil {
		return fmt.Errorf("payment %s: %w", payNo, err)
	}
	return nil
}

func (f *Facade) orderOf(ctx context.Context, tx bun.Tx, payNo string) (string, error) {
	var orderID string
	err := tx.QueryRowContext(ctx, "SELECT order_id FROM demo_payment WHERE pay_no = ?", payNo).Scan(&orderID)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("payment %s: %w", payNo, err)
	}
	return orderID, nil
}
