// Package wallet keeps the users' money. At every commit available + frozen + spent =
// granted, and every movement has a ledger row under its idempotency key.
package wallet

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
	NoWallet  = "NO_WALLET" // the order uses no wallet
)

// ErrInsufficient means that the available balance does not suffice.
var ErrInsufficient = errors.New("wallet balance does not suffice")

// ErrNotYet means that what is to be reverted has not happened yet.
var ErrNotYet = errors.New("the wallet has not been charged yet")

// Balance is a user's money in cents.
type Balance struct {
	AvailableCents int64 `json:"availableCents"`
	FrozenCents    int64 `json:"frozenCents"`
	SpentCents     int64 `json:"spentCents"`
}

// Facade is what other modules may do with wallets.
type Facade struct {
	db *bun.DB
	d  database.Dialect
}

// New returns the wallets of db.
func New(db *bun.DB) (*Facade, error) {
	d, err := database.Of(db)
	return &Facade{db: db, d: d}, err
}

// Open makes a user's wallet and grants its first money.
func (f *Facade) Open(ctx context.Context, tx bun.Tx, userID string, cents int64) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO demo_wallet (user_id, available, frozen, spent, granted) VALUES (?, ?, 0, 0, ?)",
		userID, cents, cents); err != nil {
		return fmt.Errorf("wallet: open: %w", err)
	}
	return f.book(ctx, tx, "wallet:"+userID+":grant", userID, "", move{available: cents})
}

// Get reads a user's balance.
func (f *Facade) Get(ctx context.Context, idb bun.IDB, userID string) (Balance, error) {
	var b Balance
	err := idb.QueryRowContext(ctx, "SELECT available, frozen, spent FROM demo_wallet WHERE user_id = ?", userID).
		Scan(&b.AvailableCents, &b.FrozenCents, &b.SpentCents)
	if err != nil {
		return b, fmt.Errorf("wallet of %s: %w", userID, err)
	}
	return b, nil
}

// Freeze sets money aside for an order.
func (f *Facade) Freeze(ctx context.Context, tx bun.Tx, orderID, userID string, cents int64) (string, error) {
	return f.once(ctx, tx, "freeze", key(orderID, "freeze"), orderID, userID, func(available int64) (string, error) {
		if barred, err := f.barred(ctx, tx, orderID); err != nil || barred {
			return Nothing, err
		}
		if available < cents {
			return "", fmt.Errorf("%w: %d cents available, %d wanted", ErrInsufficient, available, cents)
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO demo_wallet_freeze (order_id, user_id, cents, status) VALUES (?, ?, ?, 'FROZEN')",
			orderID, userID, cents)
		if err != nil {
			return "", fmt.Errorf("wallet: freeze: %w", err)
		}
		return OK, f.book(ctx, tx, key(orderID, "freeze"), userID, orderID, move{available: -cents, frozen: cents})
	})
}

// Commit spends what was frozen for an order. If that could not be frozen, it is taken from the available money.
func (f *Facade) Commit(ctx context.Context, tx bun.Tx, orderID, userID string, cents int64) (string, error) {
	return f.once(ctx, tx, "commit", key(orderID, "commit"), orderID, userID, func(available int64) (string, error) {
		changed, err := f.settle(ctx, tx, orderID, "FROZEN", "COMMITTED")
		if err != nil {
			return "", err
		}
		if changed {
			return OK, f.book(ctx, tx, key(orderID, "commit"), userID, orderID, move{frozen: -cents, spent: cents})
		}
		if available < cents {
			return "", fmt.Errorf("%w: the freeze is gone, %d cents available, %d wanted", ErrInsufficient, available, cents)
		}
		if _, err = tx.ExecContext(ctx, "INSERT INTO demo_wallet_freeze (order_id, user_id, cents, status) VALUES (?, ?, ?, 'COMMITTED')",
			orderID, userID, cents); err != nil {
			return "", err
		}
		return OK, f.book(ctx, tx, key(orderID, "commit"), userID, orderID, move{available: -cents, spent: cents})
	})
}

// Release gives back what was frozen for an order. After the reaper, say, there is nothing left to give back.
func (f *Facade) Release(ctx context.Context, tx bun.Tx, orderID string) (string, error) {
	var userID, status string
	var cents int64
	err := tx.QueryRowContext(ctx, "SELECT user_id, cents, status FROM demo_wallet_freeze WHERE order_id = ? AND status <> 'BARRED'",
		orderID).Scan(&userID, &cents, &status)
	if errors.Is(err, sql.ErrNoRows) {
		return Nothing, f.bar(ctx, tx, orderID)
	}
	if err != nil {
		return "", fmt.Errorf("wallet: release: %w", err)
	}
	if status != "FROZEN" {
		return Nothing, nil
	}
	return f.once(ctx, tx, "release", key(orderID, "release"), orderID, userID, func(int64) (string, error) {
		changed, err := f.settle(ctx, tx, orderID, "FROZEN", "RELEASED")
		if err != nil || !changed {
			return Nothing, err
		}
		return OK, f.book(ctx, tx, key(orderID, "release"), userID, orderID, move{available: cents, frozen: -cents})
	})
}

// bar notes that an order was canceled whose freeze never came, so that an operator who
// retries the dead freeze later sets nothing aside for ever.
func (f *Facade) bar(ctx context.Context, tx bun.Tx, orderID string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_wallet_freeze (order_id, user_id, cents, status) VALUES (?, '', 0, 'BARRED')"+
		f.d.Ignore("order_id"), orderID)
	if err != nil {
		return fmt.Errorf("wallet: bar the freeze of %s: %w", orderID, err)
	}
	return nil
}

func (f *Facade) barred(ctx context.Context, tx bun.Tx, orderID string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_wallet_freeze WHERE order_id = ? AND status = 'BARRED'", orderID).Scan(&n)
	return n > 0, err
}

// Revert gives back what an order has spent.
func (f *Facade) Revert(ctx context.Context, tx bun.Tx, refundID, orderID, userID string, cents int64) (string, error) {
	return f.once(ctx, tx, "revert", key(refundID, "revert"), orderID, userID, func(int64) (string, error) {
		done, err := f.booked(ctx, tx, key(orderID, "commit"))
		if err != nil {
			return "", err
		}
		if !done {
			return "", ErrNotYet
		}
		if _, err := f.settle(ctx, tx, orderID, "COMMITTED", "REVERTED"); err != nil {
			return "", err
		}
		return OK, f.book(ctx, tx, key(refundID, "revert"), userID, orderID, move{available: cents, spent: -cents})
	})
}

// once runs a movement under the lock of the user's account unless its ledger row exists.
func (f *Facade) once(ctx context.Context, tx bun.Tx, name, idemKey, orderID, userID string,
	move func(available int64) (string, error),
) (result string, err error) {
	ctx, end := trail.Start(ctx, "wallet."+name, orderID, idemKey)
	defer func() { end(result, err) }()
	var available int64
	err = tx.QueryRowContext(ctx, "SELECT available FROM demo_wallet WHERE user_id = ?"+f.d.ForUpdate, userID).Scan(&available)
	if err != nil {
		return "", fmt.Errorf("wallet of %s: %w", userID, err)
	}
	done, err := f.booked(ctx, tx, idemKey)
	if err != nil || done {
		return Duplicate, err
	}
	return move(available)
}

func (f *Facade) booked(ctx context.Context, tx bun.Tx, idemKey string) (bool, error) {
	var n int
	err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_wallet_ledger WHERE idem_key = ?", idemKey).Scan(&n)
	return n > 0, err
}

// settle moves an order's freeze from one state to another and reports whether it was in the first.
func (f *Facade) settle(ctx context.Context, tx bun.Tx, orderID, from, to string) (bool, error) {
	res, err := tx.ExecContext(ctx, "UPDATE demo_wallet_freeze SET status = ? WHERE order_id = ? AND status = ?", to, orderID, from)
	if err != nil {
		return false, fmt.Errorf("wallet: freeze of %s: %w", orderID, err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// move is a change of the three pots.
type move struct{ available, frozen, spent int64 }

// book changes an account and writes the ledger row, whose key is unique.
func (f *Facade) book(ctx context.Context, tx bun.Tx, idemKey, userID, orderID string, m move) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_wallet_ledger (idem_key, user_id, order_id, d_available, d_frozen, d_spent) "+
		"VALUES (?, ?, ?, ?, ?, ?)", idemKey, userID, orderID, m.available, m.frozen, m.spent)
	if err != nil {
		return fmt.Errorf("wallet: book %s: %w", idemKey, err)
	}
	if orderID == "" {
		return nil // the grant stands in the account already
	}
	res, err := tx.ExecContext(ctx, "UPDATE demo_wallet SET available = available + ?, frozen = frozen + ?, spent = spent + ? "+
		"WHERE user_id = ? AND available + ? >= 0 AND frozen + ? >= 0 AND spent + ? >= 0",
		m.available, m.frozen, m.spent, userID, m.available, m.frozen, m.spent)
	if err != nil {
		return fmt.Errorf("wallet: book %s: %w", idemKey, err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("wallet: book %s: the account of %s would become negative", idemKey, userID))
	}
	return nil
}

func key(id, what string) string { return "wallet:" + id + ":" + what }
