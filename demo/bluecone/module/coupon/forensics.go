package coupon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Use is what became of a coupon in an order.
type Use struct {
	CouponID, Status string // of the lock: LOCKED, COMMITTED, RELEASED; "" for none
	Since            time.Time
	Moves            []Movement
}

// Movement is one operation on the coupon.
type Movement struct {
	Key string // its idempotency key
	At  time.Time
}

// Use reads what the module has done for an order, for people who ask what became of it. It is the
// zero value if that is nothing.
func (f *Facade) Use(ctx context.Context, orderID string) (Use, error) {
	var u Use
	var since int64
	err := f.db.QueryRowContext(ctx, "SELECT coupon_id, status, "+f.d.Micros("locked_at")+" FROM demo_coupon_lock WHERE order_id = ?",
		orderID).Scan(&u.CouponID, &u.Status, &since)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return u, fmt.Errorf("coupon: use in order %s: %w", orderID, err)
	}
	if u.Status != "" {
		u.Since = time.UnixMicro(since).UTC()
	}
	rows, err := f.db.QueryContext(ctx, "SELECT idem_key, "+f.d.Micros("created_at")+" FROM demo_coupon_operation WHERE order_id = ? "+
		"ORDER BY created_at, idem_key", orderID)
	if err != nil {
		return u, fmt.Errorf("coupon: use in order %s: %w", orderID, err)
	}
	defer rows.Close()
	for rows.Next() {
		var m Movement
		var at int64
		if err := rows.Scan(&m.Key, &at); err != nil {
			return u, fmt.Errorf("coupon: use in order %s: %w", orderID, err)
		}
		m.At = time.UnixMicro(at).UTC()
		u.Moves = append(u.Moves, m)
	}
	return u, rows.Err()
}
