// Package coupon keeps the users' coupons: ISSUED, LOCKED for one order, or USED.
package coupon

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/trail"
)

// The states of a coupon.
const (
	Issued = "ISSUED"
	Locked = "LOCKED"
	Used   = "USED"
)

// The results of an operation.
const (
	OK        = "OK"
	Duplicate = "DUPLICATE" // the operation has happened already
	Nothing   = "NO_LOCK"   // there was nothing to give back
	NoCoupon  = "NO_COUPON" // the order uses no coupon
)

// ErrTaken means that the coupon is not free for the order.
var ErrTaken = errors.New("the coupon is not free")

// Coupon is one coupon of a user.
type Coupon struct {
	CouponID string `json:"couponId"`
	UserID   string `json:"-"`
	Cents    int64  `json:"cents"`
	Status   string `json:"status"`
}

// Facade is what other modules may do with coupons.
type Facade struct {
	db *bun.DB
	d  database.Dialect
}

// New returns the coupons of db.
func New(db *bun.DB) (*Facade, error) {
	d, err := database.Of(db)
	return &Facade{db: db, d: d}, err
}

// Issue gives a user a coupon.
func (f *Facade) Issue(ctx context.Context, tx bun.Tx, couponID, userID string, cents int64) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_coupon (id, user_id, cents, status) VALUES (?, ?, ?, 'ISSUED')", couponID, userID, cents)
	if err != nil {
		return fmt.Errorf("coupon: issue: %w", err)
	}
	return nil
}

// Get reads a coupon. It answers sql.ErrNoRows if there is none.
func (f *Facade) Get(ctx context.Context, idb bun.IDB, couponID string) (Coupon, error) {
	c := Coupon{CouponID: couponID}
	err := idb.QueryRowContext(ctx, "SELECT user_id, cents, status FROM demo_coupon WHERE id = ?", couponID).Scan(&c.UserID, &c.Cents,
		&c.Status)
	if err != nil {
		return c, fmt.Errorf("coupon %s: %w", couponID, err)
	}
	return c, nil
}

// Of lists a user's coupons.
func (f *Facade) Of(ctx context.Context, idb bun.IDB, userID string) ([]Coupon, error) {
	rows, err := idb.QueryContext(ctx, "SELECT id, cents, status FROM demo_coupon WHERE user_id = ? ORDER BY id", userID)
	if err != nil {
		return nil, fmt.Errorf("coupons of %s: %w", userID, err)
	}
	defer rows.Close()
	out := []Coupon{}
	for rows.Next() {
		c := Coupon{UserID: userID}
		if err := rows.Scan(&c.CouponID, &c.Cents, &c.Status); err != nil {
			return nil, fmt.Errorf("coupons of %s: %w", userID, err)
		}
		out = append(out, c)
	}
	return out, rows.Err()
}

// Lock reserves a coupon for an order.
func (f *Facade) Lock(ctx context.Context, tx bun.Tx, couponID, orderID string) (string, error) {
	return f.once(ctx, tx, "lock", key(orderID, "checkout"), couponID, orderID, func() (string, error) {
		if barred, err := f.barred(ctx, tx, orderID); err != nil || barred {
			return Nothing, err
		}
		ok, err := f.move(ctx, tx, couponID, Issued, Locked)
		if err != nil || !ok {
			return "", errors.Join(err, taken(couponID, ok))
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO demo_coupon_lock (order_id, coupon_id, status) VALUES (?, ?, 'LOCKED')", orderID, couponID)
		return OK, err
	})
}

// Commit uses the coupon that an order has locked. If it could not be locked, it is taken now.
func (f *Facade) Commit(ctx context.Context, tx bun.Tx, couponID, orderID string) (string, error) {
	return f.once(ctx, tx, "commit", key(orderID, "commit"), couponID, orderID, func() (string, error) {
		locked, err := f.settle(ctx, tx, orderID, Locked, "COMMITTED")
		if err != nil {
			return "", err
		}
		from := Issued
		if locked {
			from = Locked
		}
		ok, err := f.move(ctx, tx, couponID, from, Used)
		if err != nil || !ok {
			return "", errors.Join(err, taken(couponID, ok))
		}
		return OK, nil
	})
}

// Release frees the coupon that an order has locked. The lock is found by the order. After the reaper, say, there is
// nothing left to free.
func (f *Facade) Release(ctx context.Context, tx bun.Tx, orderID string) (string, error) {
	var couponID, status string
	err := tx.QueryRowContext(ctx, "SELECT coupon_id, status FROM demo_coupon_lock WHERE order_id = ? AND status <> 'BARRED'",
		orderID).Scan(&couponID, &status)
	if errors.Is(err, sql.ErrNoRows) {
		return Nothing, f.bar(ctx, tx, orderID)
	}
	if err != nil {
		return "", fmt.Errorf("coupon: release: %w", err)
	}
	if status != Locked {
		return Nothing, nil
	}
	return f.once(ctx, tx, "release", key(orderID, "release"), couponID, orderID, func() (string, error) {
		locked, err := f.settle(ctx, tx, orderID, Locked, "RELEASED")
		if err != nil || !locked {
			return Nothing, err
		}
		ok, err := f.move(ctx, tx, couponID, Locked, Issued)
		if err != nil || !ok {
			return "", errors.Join(err, taken(couponID, ok))
		}
		return OK, nil
	})
}

// bar notes that an order was canceled whose lock never came, so that an operator who
// retries the dead lock later reserves nothing for ever.
func (f *Facade) bar(ctx context.Context, tx bun.Tx, orderID string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_coupon_lock (order_id, coupon_id, status) VALUES (?, '', 'BARRED')"+
		f.d.Ignore("order_id"), orderID)
	if err != nil {
		return fmt.Errorf("coupon: bar the lock of %s: %w", orderID, err)
	}
	return nil
}

func (f *Facade) barred(ctx context.Context, tx bun.Tx, orderID string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_coupon_lock WHERE order_id = ? AND status = 'BARRED'", orderID).Scan(&n)
	return n > 0, err
}

// once runs an operation under the lock of the coupon unless it has happened already.
func (f *Facade) once(ctx context.Context, tx bun.Tx, name, idemKey, couponID, orderID string,
	op func() (string, error),
) (result string, err error) {
	ctx, end := trail.Start(ctx, "coupon."+name, orderID, idemKey)
	defer func() { end(result, err) }()
	var status string
	if err := tx.QueryRowContext(ctx, "SELECT status FROM demo_coupon WHERE id = ?"+f.d.ForUpdate, couponID).Scan(&status); err != nil {
		return "", fmt.Errorf("coupon %s: %w", couponID, err)
	}
	var n int
	if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_coupon_operation WHERE idem_key = ?", idemKey).Scan(&n); err != nil || n > 0 {
		return Duplicate, err
	}
	result, err = op()
	if err != nil || result != OK {
		return result, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO demo_coupon_operation (idem_key, coupon_id, order_id) VALUES (?, ?, ?)", idemKey, couponID,
		orderID)
	return result, err
}

func (f *Facade) move(ctx context.Context, tx bun.Tx, couponID, from, to string) (bool, error) {
	return changed(tx.ExecContext(ctx, "UPDATE demo_coupon SET status = ? WHERE id = ? AND status = ?", to, couponID, from))
}

func (f *Facade) settle(ctx context.Context, tx bun.Tx, orderID, from, to string) (bool, error) {
	return changed(tx.ExecContext(ctx, "UPDATE demo_coupon_lock SET status = ? WHERE order_id = ? AND status = ?", to, orderID, from))
}

func changed(res sql.Result, err error) (bool, error) {
	if err != nil {
		return false, fmt.Errorf("coupon: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func taken(couponID string, ok bool) error {
	if ok {
		return nil
	}
	return fmt.Errorf("coupon %s: %w", couponID, ErrTaken)
}

func key(orderID, what string) string { return "order:" + orderID + ":" + what }
