package points

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
	Points int64
	Status string    // of the freeze: FROZEN, COMMITTED, RELEASED, REVERTED; "" for none
	Since  time.Time // it was frozen
	Net    int64     // points that the order has brought, less those it has cost
	Moves  []Movement
}

// Movement is one row of the ledger.
type Movement struct {
	Key               string // its idempotency key
	Available, Frozen int64
	At                time.Time
}

// Account reads what the module has done for an order, for people who ask what became of it. It is
// the zero value if that is nothing.
func (f *Facade) Account(ctx context.Context, orderID string) (Account, error) {
	var a Account
	var since int64
	err := f.db.QueryRowContext(ctx, "SELECT user_id, points, status, "+f.d.Micros("frozen_at")+
		" FROM demo_points_freeze WHERE order_id = ?", orderID).Scan(&a.UserID, &a.Points, &a.Status, &since)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return a, fmt.Errorf("points: account of order %s: %w", orderID, err)
	}
	if a.Status != "" {
		a.Since = time.UnixMicro(since).UTC()
	}
	rows, err := f.db.QueryContext(ctx, "SELECT idem_key, d_available, d_frozen, "+f.d.Micros("created_at")+
		" FROM demo_points_ledger WHERE order_id = ? ORDER BY created_at, idem_key", orderID)
	if err != nil {
		return a, fmt.Errorf("points: account of order %s: %w", orderID, err)
	}
	defer rows.Close()
	for rows.Next() {
		var m Movement
		var at int64
		if err := rows.Scan(&m.Key, &m.Available, &m.Frozen, &at); err != nil {
			return a, fmt.Errorf("points: account of order %s: %w", orderID, err)
		}
		m.At = time.UnixMicro(at).UTC()
		a.Net += m.Available + m.Frozen
		a.Moves = append(a.Moves, m)
	}
	return a, rows.Err()
}
