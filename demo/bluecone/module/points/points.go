// Package points keeps the users' points. Every movement has a ledger row under its
// idempotency key. Taking back earned points may make an account negative; points are
// never silently dropped.
package points

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/trail"
)

// The results of a movement.
const (
	OK        = "OK"
	Duplicate = "DUPLICATE" // the movement has happened already
	Nothing   = "NO_FREEZE" // there was nothing to give back
	NoPoints  = "NO_POINTS" // the order neither uses nor earns points
)

// ErrInsufficient means that there are not enough points.
var ErrInsufficient = errors.New("points do not suffice")

// ErrNotYet means that what is to be reverted has not happened yet.
var ErrNotYet = errors.New("the points have not been moved yet")

// Balance is a user's points.
type Balance struct {
	Available int64 `json:"available"`
	Frozen    int64 `json:"frozen"`
}

// Facade is what other modules may do with points.
type Facade struct {
	db *bun.DB
	d  database.Dialect
}

// New returns the points of db.
func New(db *bun.DB) (*Facade, error) {
	d, err := database.Of(db)
	return &Facade{db: db, d: d}, err
}

// Open makes a user's account and grants its first points.
func (f *Facade) Open(ctx context.Context, tx bun.Tx, userID string, points int64) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO demo_points (user_id, available, frozen) VALUES (?, 0, 0)", userID); err != nil {
		return fmt.Errorf("points: open: %w", err)
	}
	return f.book(ctx, tx, "points:"+userID+":grant", userID, "", points, 0)
}

// Get reads a user's balance.
func (f *Facade) Get(ctx context.Context, idb bun.IDB, userID string) (Balance, error) {
	var b Balance
	err := idb.QueryRowContext(ctx, "SELECT available, frozen FROM demo_points WHERE user_id = ?", userID).Scan(&b.Available, &b.Frozen)
	if err != nil {
		return b, fmt.Errorf("points of %s: %w", userID, err)
	}
	return b, nil
}

// Freeze sets points aside for an order.
func (f *Facade) Freeze(ctx context.Context, tx bun.Tx, orderID, userID string, points int64) (string, error) {
	return f.once(ctx, tx, "freeze", key(orderID, "freeze"), orderID, userID, func(available int64) (string, error) {
		if barred, err := f.barred(ctx, tx, orderID); err != nil || barred {
			return Nothing, err
		}
		if available < points {
			return "", fmt.Errorf("%w: %d available, %d wanted", ErrInsufficient, available, points)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO demo_points_freeze (order_id, user_id, points, status) VALUES (?, ?, ?, 'FROZEN')",
			orderID, userID, points)
		if err != nil {
			return "", fmt.Errorf("points: freeze: %w", err)
		}
		return OK, f.book(ctx, tx, key(orderID, "freeze"), userID, orderID, -points, points)
	})
}

// Commit uses up what was frozen for an order. If that could not be frozen, it is taken from the available points.
func (f *Facade) Commit(ctx context.Context, tx bun.Tx, orderID, userID string, points int64) (string, error) {
	return f.once(ctx, tx, "commit", key(orderID, "commit"), orderID, userID, func(available int64) (string, error) {
		changed, err := f.settle(ctx, tx, orderID, "FROZEN", "COMMITTED")
		if err != nil {
			return "", err
		}
		if changed {
			return OK, f.book(ctx, tx, key(orderID, "commit"), userID, orderID, 0, -points)
		}
		if available < points {
			return "", fmt.Errorf("%w: the freeze is gone, %d available, %d wanted", ErrInsufficient, available, points)
		}
		if _, err = tx.ExecContext(ctx, "INSERT INTO demo_points_freeze (order_id, user_id, points, status) VALUES (?, ?, ?, 'COMMITTED')",
			orderID, userID, points); err != nil {
			return "", err
		}
		return OK, f.book(ctx, tx, key(orderID, "commit"), userID, orderID, -points, 0)
	})
}

// Earn adds the points that an order earns.
func (f *Facade) Earn(ctx context.Context, tx bun.Tx, orderID, userID string, points int64) (string, error) {
	return f.once(ctx, tx, "earn", key(orderID, "earn"), orderID, userID, func(int64) (string, error) {
		return OK, f.book(ctx, tx, key(orderID, "earn"), userID, orderID, points, 0)
	})
}

// Release gives back what was frozen for an order. After the reaper, say, there is nothing left to give back.
func (f *Facade) Release(ctx context.Context, tx bun.Tx, orderID string) (string, error) {
	var userID, status string
	var points int64
	err := tx.QueryRowContext(ctx, "SELECT user_id, points, status FROM demo_points_freeze WHERE order_id = ? AND status <> 'BARRED'",
		orderID).Scan(&userID, &points, &status)
	if errors.Is(err, sql.ErrNoRows) {
		return Nothing, f.bar(ctx, tx, orderID)
	}
	if err != nil {
		return "", fmt.Errorf("points: release: %w", err)
	}
	if status != "FROZEN" {
		return Nothing, nil
	}
	return f.once(ctx, tx, "release", key(orderID, "release"), orderID, userID, func(int64) (string, error) {
		changed, err := f.settle(ctx, tx, orderID, "FROZEN", "RELEASED")
		if err != nil || !changed {
			return Nothing, err
		}
		return OK, f.book(ctx, tx, key(orderID, "release"), userID, orderID, points, -points)
	})
}

// bar notes that an order was canceled whose freeze never came, so that an operator who
// retries the dead freeze later sets nothing aside for ever.
func (f *Facade) bar(ctx context.Context, tx bun.Tx, orderID string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_points_freeze (order_id, user_id, points, status) VALUES (?, '', 0, 'BARRED')"+
		f.d.Ignore("order_id"), orderID)
	if err != nil {
		return fmt.Errorf("points: bar the freeze of %s: %w", orderID, err)
	}
	return nil
}

func (f *Facade) barred(ctx context.Context, tx bun.Tx, orderID string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_points_freeze WHERE order_id = ? AND status = 'BARRED'", orderID).Scan(&n)
	return n > 0, err
}

// RevertUsed gives back the points that an order has used.
func (f *Facade) RevertUsed(ctx context.Context, tx bun.Tx, refundID, orderID, userID string, points int64) (string, error) {
	return f.revert(ctx, tx, "revert_used", "commit", refundID, orderID, userID, points)
}

// RevertEarned takes back the points that an order has earned.
func (f *Facade) RevertEarned(ctx context.Context, tx bun.Tx, refundID, orderID, userID string, points int64) (string, error) {
	return f.revert(ctx, tx, "revert_earned", "earn", refundID, orderID, userID, -points)
}

func (f *Facade) revert(ctx context.Context, tx bun.Tx, name, of, refundID, orderID, userID string, delta int64) (string, error) {
	return f.once(ctx, tx, name, key(refundID, name), orderID, userID, func(int64) (string, error) {
		done, err := f.booked(ctx, tx, key(orderID, of))
		if err != nil {
			return "", err
		}
		if !done {
			return "", ErrNotYet
		}
		return OK, f.book(ctx, tx, key(refundID, name), userID, orderID, delta, 0)
	})
}

// once runs a movement under the lock of the user's account unless its ledger row exists.
func (f *Facade) once(ctx context.Context, tx bun.Tx, name, idemKey, orderID, userID string,
	move func(available int64) (string, error),
) (result string, err error) {
	ctx, end := trail.Start(ctx, "points."+name, orderID, idemKey)
	defer func() { end(result, err) }()
	var available int64
	err = tx.QueryRowContext(ctx, "SELECT available FROM demo_points WHERE user_id = ?"+f.d.ForUpdate, userID).Scan(&available)
	if err != nil {
		return "", fmt.Errorf("points of %s: %w", userID, err)
	}
	done, err := f.booked(ctx, tx, idemKey)
	if err != nil || done {
		return Duplicate, err
	}
	return move(available)
}

func (f *Facade) booked(ctx context.Context, tx bun.Tx, idemKey string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_points_ledger WHERE idem_key = ?", idemKey).Scan(&n)
	return n > 0, err
}

func (f *Facade) settle(ctx context.Context, tx bun.Tx, orderID, from, to string) (bool, error) {
	res, err := tx.ExecContext(ctx, "UPDATE demo_points_freeze SET status = ? WHERE order_id = ? AND status = ?", to, orderID, from)
	if err != nil {
		return false, fmt.Errorf("points: freeze of %s: %w", orderID, err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// book changes an account and writes the ledger row, whose key is unique.
func (f *Facade) book(ctx context.Context, tx bun.Tx, idemKey, userID, orderID string, available, frozen int64) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_points_ledger (idem_key, user_id, order_id, d_available, d_frozen) "+
		"VALUES (?, ?, ?, ?, ?)", idemKey, userID, orderID, available, frozen)
	if err != nil {
		return fmt.Errorf("points: book %s: %w", idemKey, err)
	}
	res, err := tx.ExecContext(ctx, "UPDATE demo_points SET available = available + ?, frozen = frozen + ? WHERE user_id = ? "+
		"AND frozen + ? >= 0", available, frozen, userID, frozen)
	if err != nil {
		return fmt.Errorf("points: book %s: %w", idemKey, err)
	}
	if n, err := res.RowsAffected(); err != nil || (n != 1 && (available != 0 || frozen != 0)) {
		return errors.Join(err, fmt.Errorf("points: book %s: the frozen points of %s would become negative", idemKey, userID))
	}
	return nil
}

func key(id, what string) string { return "points:" + id + ":" + what }
