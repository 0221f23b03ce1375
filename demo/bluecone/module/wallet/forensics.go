package wallet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Account is what the module has done for an order.
type Account struct {
	UserID string
	Cents  int64
	Status string    // of the freeze: FROZEN, COMMITTED, RELEASED, REVERTED; "" for none
	Since  time.Time // it was frozen
	Net    int64     // cents that the order has cost
	Moves  []Movement
}

// Movement is one row of the ledger.
type Movement struct {
	Key                      string // its idempotency key
	Available, Frozen, Spent int64
	At                       time.Time
}

// Account reads what the module has done for an order, for people who ask what became of it. It is
// the zero value if that is nothing.
func (f *Facade) Account(ctx context.Context, orderID string) (Account, error) {
	var a Account
	var since int64
	err := f.db.QueryRowContext(ctx, "SELECT user_id, cents, status, "+f.d.Micros("frozen_at")+
		" FROM demo_wallet_freeze WHERE order_id = ?", orderID).Scan(&a.UserID, &a.Cents, &a.Status, &since)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return a, fmt.Errorf("wallet: account of order %s: %w", orderID, err)
	}
	if a.Status != "" {
		a.Since = time.UnixMicro(since).UTC()
	}
	rows, err := f.db.QueryContext(ctx, "SELECT idem_key, d_available, d_frozen, d_spent, "+f.d.Micros("created_at")+
		" FROM demo_wallet_ledger WHERE order_id = ? ORDER BY created_at, idem_key", orderID)
	if err != nil {
		return a, fmt.Errorf("wallet: account of order %s: %w", orderID, err)
	}
	defer rows.Close()
	for rows.Next() {
		var m Movement
		var at int64
		if err := rows.Scan(&m.Key, &m.Available, &m.Frozen, &m.Spent, &at); err != nil {
			return a, fmt.Errorf("wallet: account of order %s: %w", orderID, err)
		}
		m.At = time.UnixMicro(at).UTC()
		a.Net += m.Spent
		a.Moves = append(a.Moves, m)
	}
	return a, rows.Err()
}
