// Package order owns the orders and their events. Every change of state and its event are
// one transaction.
package order

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/demo/bluecone/database"
	"github.com/bluecone-go/bluecone/demo/bluecone/input"
	"github.com/bluecone-go/bluecone/outbox"
)

// The states of an order.
const (
	Draft    = "DRAFT"
	WaitPay  = "WAIT_PAY"
	StPaid   = "PAID"
	StCancel = "CANCELED"
	StRefund = "REFUNDED"
)

// Assets is what the order module asks of the others.
type Assets struct {
	// Grant opens a user's accounts, in the transaction that makes the user.
	Grant func(ctx context.Context, tx bun.Tx, userID string, walletCents, points int64, couponCents map[string]int64) error
	// WalletCents and Points are what the user could freeze now.
	WalletCents func(ctx context.Context, idb bun.IDB, userID string) (int64, error)
	Points      func(ctx context.Context, idb bun.IDB, userID string) (int64, error)
	// Coupon tells a coupon's owner and value, and whether it is free.
	Coupon func(ctx context.Context, idb bun.IDB, couponID string) (userID string, cents int64, free bool, err error)
	// RecordPayment notes a payment once. For one of another order its error is an [ErrPayNoUsed].
	RecordPayment func(ctx context.Context, tx bun.Tx, payNo, orderID string) error
	// FreezeFailed tells whether the assets of the order could not be frozen for good.
	FreezeFailed func(ctx context.Context, orderID string) (bool, error)
}

// Service changes orders.
type Service struct {
	db     *bun.DB
	d      database.Dialect
	ob     *outbox.Outbox
	assets Assets
}

// New returns the order service of db.
func New(db *bun.DB, ob *outbox.Outbox, assets Assets) (*Service, error) {
	d, err := database.Of(db)
	return &Service{db: db, d: d, ob: ob, assets: assets}, err
}

// Order is an order as it stands.
type Order struct {
	OrderID      string `json:"orderId"`
	UserID       string `json:"userId"`
	Status       string `json:"status"`
	TotalCents   int64  `json:"totalCents"`
	WalletCents  int64  `json:"walletCents"`
	Points       int64  `json:"points"`
	CouponID     string `json:"couponId"`
	PayableCents int64  `json:"payableCents"`

	couponCents, earned int64
	refundID            string
}

// NewUser asks for a user.
type NewUser struct {
	WalletCents int64   `json:"walletCents"`
	Points      int64   `json:"points"`
	CouponCents []int64 `json:"couponCents"`
}

// User is a new user.
type User struct {
	UserID    string   `json:"userId"`
	CouponIDs []string `json:"couponIds"`
}

const maxCents = 1_000_000_000_000

// CreateUser makes a user and opens the accounts, all in one transaction.
func (s *Service) CreateUser(ctx context.Context, key string, req NewUser) (User, error) {
	if err := within("walletCents", req.WalletCents); err != nil {
		return User{}, err
	}
	if err := within("points", req.Points); err != nil {
		return User{}, err
	}
	if len(req.CouponCents) > 100 {
		return User{}, refuse(Invalid, "INVALID", "couponCents has %d entries, the limit is 100", len(req.CouponCents))
	}
	for _, c := range req.CouponCents {
		if err := within("couponCents", c); err != nil {
			return User{}, err
		}
	}
	return once(ctx, s, prefixed("user:", key), req, func(ctx context.Context, tx bun.Tx) (User, error) {
		u := User{UserID: newID(), CouponIDs: make([]string, len(req.CouponCents))}
		coupons := make(map[string]int64, len(req.CouponCents))
		for i, cents := range req.CouponCents {
			u.CouponIDs[i] = newID()
			coupons[u.CouponIDs[i]] = cents
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO demo_user (id) VALUES (?)", u.UserID); err != nil {
			return u, fmt.Errorf("user: %w", err)
		}
		return u, s.assets.Grant(ctx, tx, u.UserID, req.WalletCents, req.Points, coupons)
	})
}

// HasUser reports whether there is such a user.
func (s *Service) HasUser(ctx context.Context, idb bun.IDB, userID string) (bool, error) {
	var n int
	err := idb.QueryRowContext(ctx, "SELECT COUNT(*) FROM demo_user WHERE id = ?", userID).Scan(&n)
	return n == 1, err
}

// NewOrder asks for an order.
type NewOrder struct {
	UserID      string `json:"userId"`
	TotalCents  int64  `json:"totalCents"`
	WalletCents int64  `json:"walletCents"`
	Points      int64  `json:"points"`
	CouponID    string `json:"couponId"`
}

// Create places an order: DRAFT → WAIT_PAY, and order.checkout_locked.
func (s *Service) Create(ctx context.Context, key string, req NewOrder) (Order, error) {
	for field, cents := range map[string]int64{"totalCents": req.TotalCents, "walletCents": req.WalletCents, "points": req.Points} {
		if err := within(field, cents); err != nil {
			return Order{}, err
		}
	}
	if req.UserID == "" || req.TotalCents == 0 {
		return Order{}, refuse(Invalid, "INVALID", "userId and totalCents must be given")
	}
	if err := plain("userId", req.UserID, 64); err != nil {
		return Order{}, err
	}
	if req.CouponID != "" {
		if err := plain("couponId", req.CouponID, 64); err != nil {
			return Order{}, err
		}
	}
	return once(ctx, s, prefixed("order:", key), req, func(ctx context.Context, tx bun.Tx) (Order, error) { return s.create(ctx, tx, req) })
}

func (s *Service) create(ctx context.Context, tx bun.Tx, req NewOrder) (Order, error) {
	o := Order{
		OrderID: newID(), UserID: req.UserID, Status: WaitPay, TotalCents: req.TotalCents, WalletCents: req.WalletCents,
		Points: req.Points, CouponID: req.CouponID,
	}
	if err := s.affordable(ctx, tx, req, &o); err != nil {
		return o, err
	}
	o.PayableCents = o.TotalCents - o.couponCents - o.WalletCents - o.Points
	if o.PayableCents < 0 {
		return o, refuse(Invalid, "PAYABLE_NEGATIVE", "coupon, wallet and points come to %d cents more than the total", -o.PayableCents)
	}
	o.earned = (o.TotalCents - o.couponCents - o.Points) / 100
	_, err := tx.ExecContext(ctx, "INSERT INTO demo_order (id, user_id, status, total_cents, wallet_cents, points, coupon_id, "+
		"coupon_cents, payable_cents, earned, refund_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '')",
		o.OrderID, o.UserID, Draft, o.TotalCents, o.WalletCents, o.Points, o.CouponID, o.couponCents, o.PayableCents, o.earned)
	if err != nil {
		return o, fmt.Errorf("order: %w", err)
	}
	if err := s.move(ctx, tx, o.OrderID, Draft, WaitPay, ""); err != nil {
		return o, err
	}
	return o, s.ob.Save(ctx, tx, CheckoutLocked{
		OrderID: ID(o.OrderID), UserID: ID(o.UserID), CouponID: ID(o.CouponID), TotalCents: o.TotalCents, WalletAmount: o.WalletCents,
		PointsUsed: o.Points,
	})
}

// affordable refuses what the user cannot pay as far as can be seen now; a concurrent
// order may still be faster, and then the freeze fails.
func (s *Service) affordable(ctx context.Context, tx bun.Tx, req NewOrder, o *Order) error {
	known, err := s.HasUser(ctx, tx, req.UserID)
	if err != nil {
		return err
	}
	if !known {
		return refuse(NotFound, "USER_NOT_FOUND", "there is no user %q", req.UserID)
	}
	cents, err := s.assets.WalletCents(ctx, tx, req.UserID)
	if err != nil {
		return err
	}
	points, err := s.assets.Points(ctx, tx, req.UserID)
	if err != nil {
		return err
	}
	if req.CouponID != "" {
		owner, value, free, err := s.assets.Coupon(ctx, tx, req.CouponID)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return refuse(NotFound, "COUPON_NOT_FOUND", "there is no coupon %q", req.CouponID)
		case err != nil:
			return err
		case owner != req.UserID || !free:
			return refuse(Conflict, "COUPON_NOT_ISSUED", "the coupon %q is not free for this user", req.CouponID)
		}
		o.couponCents = value
	}
	if req.TotalCents-o.couponCents-req.WalletCents-req.Points < 0 {
		return nil // a mistake in the request comes before a want of money
	}
	if cents < req.WalletCents {
		return refuse(Conflict, "WALLET_INSUFFICIENT", "the wallet holds %d cents, the order wants %d", cents, req.WalletCents)
	}
	if points < max(req.Points, 0) && req.Points > 0 {
		return refuse(Conflict, "POINTS_INSUFFICIENT", "there are %d points, the order wants %d", points, req.Points)
	}
	return nil
}

// Pay takes a payment callback: WAIT_PAY → PAID, and order.paid. It answers every
// repetition alike. loseEvent is the demo's fault: the event is not saved.
func (s *Service) Pay(ctx context.Context, orderID, payNo string, loseEvent bool) (Order, error) {
	if err := plain("payNo", payNo, 128); err != nil {
		return Order{}, err
	}
	failed, err := s.assets.FreezeFailed(ctx, orderID) // before the transaction: it needs a connection of its own
	if err != nil {
		return Order{}, err
	}
	return s.change(ctx, orderID, func(ctx context.Context, tx bun.Tx, o *Order) error {
		switch o.Status {
		case StPaid:
			return nil
		case StRefund:
			o.Status = StPaid // the callback was answered so before the refund
			return nil
		case WaitPay:
		default:
			return refuse(Conflict, "ORDER_"+o.Status, "the order is %s", o.Status)
		}
		if failed {
			return refuse(Conflict, "FREEZE_FAILED", "the assets of the order could not be frozen: cancel it")
		}
		if err := s.move(ctx, tx, orderID, WaitPay, StPaid, ", paid_at = "+s.d.Now); err != nil {
			return err
		}
		if err := s.assets.RecordPayment(ctx, tx, payNo, orderID); err != nil {
			if errors.Is(err, ErrPayNoUsed) {
				return refuse(Conflict, "PAY_NO_USED", "%v", err)
			}
			return err
		}
		o.Status = StPaid
		if loseEvent {
			return nil
		}
		return s.ob.Save(ctx, tx, o.paid())
	})
}

// Cancel gives an unpaid order up: WAIT_PAY → CANCELED, and order.canceled.
func (s *Service) Cancel(ctx context.Context, orderID string) (Order, error) {
	return s.change(ctx, orderID, func(ctx context.Context, tx bun.Tx, o *Order) error {
		switch o.Status {
		case StCancel:
			return nil
		case WaitPay:
		default:
			return refuse(Conflict, "ORDER_"+o.Status, "the order is %s", o.Status)
		}
		return s.cancel(ctx, tx, o)
	})
}

// cancel moves a locked order on, and saves its event.
func (s *Service) cancel(ctx context.Context, tx bun.Tx, o *Order, opts ...outbox.Option) error {
	if err := s.move(ctx, tx, o.OrderID, WaitPay, StCancel, ""); err != nil {
		return err
	}
	o.Status = StCancel
	return s.ob.Save(ctx, tx, outbox.With(o.canceled(), opts...))
}

// Refund pays an order back: PAID → REFUNDED, and order.refunded.
func (s *Service) Refund(ctx context.Context, orderID, refundID string) (Order, error) {
	if err := plain("refundId", refundID, 64); err != nil {
		return Order{}, err
	}
	return s.change(ctx, orderID, func(ctx context.Context, tx bun.Tx, o *Order) error {
		if o.Status == StRefund && o.refundID == refundID {
			return nil
		}
		if o.Status != StPaid {
			return refuse(Conflict, "ORDER_"+o.Status, "the order is %s", o.Status)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO demo_refund (refund_id, order_id) VALUES (?, ?)", refundID, orderID); err != nil {
			if dburl.IsDuplicate(err) {
				return refuse(Conflict, "REFUND_ID_USED", "the refund %q belongs to another order", refundID)
			}
			return fmt.Errorf("refund: %w", err)
		}
		if err := s.move(ctx, tx, orderID, StPaid, StRefund, ", refunded_at = "+s.d.Now+", refund_id = ?", refundID); err != nil {
			return err
		}
		o.Status, o.refundID = StRefund, refundID
		return s.ob.Save(ctx, tx, o.refunded())
	})
}

// change locks the order, lets fn change it and save its event, and answers the result.
func (s *Service) change(ctx context.Context, orderID string,
	fn func(ctx context.Context, tx bun.Tx, o *Order) error,
) (o Order, err error) {
	err = s.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		if o, err = s.read(ctx, tx, orderID, s.d.ForUpdate); err != nil {
			return err
		}
		return fn(ctx, tx, &o)
	})
	return o, err
}

// Get reads an order.
func (s *Service) Get(ctx context.Context, orderID string) (Order, error) {
	return s.read(ctx, s.db, orderID, "")
}

// RefundID is the refund of the order, "" if there is none.
func (o Order) RefundID() string { return o.refundID }

// Earned is how many points the order brings when it is paid.
func (o Order) Earned() int64 { return o.earned }

const columns = "id, user_id, status, total_cents, wallet_cents, points, coupon_id, coupon_cents, payable_cents, earned, refund_id"

func (s *Service) read(ctx context.Context, idb bun.IDB, orderID, lock string) (Order, error) {
	var o Order
	err := idb.QueryRowContext(ctx, "SELECT "+columns+" FROM demo_order WHERE id = ?"+lock, orderID).Scan(o.fields()...)
	if errors.Is(err, sql.ErrNoRows) {
		return o, refuse(NotFound, "ORDER_NOT_FOUND", "there is no order %q", orderID)
	}
	if err != nil {
		return o, fmt.Errorf("order %s: %w", orderID, err)
	}
	return o, nil
}

func (o *Order) fields() []any {
	return []any{
		&o.OrderID, &o.UserID, &o.Status, &o.TotalCents, &o.WalletCents, &o.Points, &o.CouponID, &o.couponCents, &o.PayableCents,
		&o.earned, &o.refundID,
	}
}

// move changes an order's state, guarded by the state it must be in.
func (s *Service) move(ctx context.Context, tx bun.Tx, orderID, from, to, set string, args ...any) error {
	args = append([]any{to}, append(args, orderID, from)...)
	res, err := tx.ExecContext(ctx, "UPDATE demo_order SET status = ?"+set+" WHERE id = ? AND status = ?", args...)
	if err != nil {
		return fmt.Errorf("order %s: %w", orderID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, fmt.Errorf("order %s is no longer %s", orderID, from))
	}
	return nil
}

func within(field string, cents int64) error {
	if cents < 0 || cents > maxCents {
		return refuse(Invalid, "INVALID", "%s is %d: it must be between 0 and %d", field, cents, int64(maxCents))
	}
	return nil
}

// plain refuses what databases would not store, or not tell apart.
func plain(field, s string, limit int) error {
	if err := input.Text(field, s, limit); err != nil {
		return refuse(Invalid, "INVALID", "%v", err)
	}
	return nil
}

func prefixed(prefix, key string) string {
	if key == "" {
		return ""
	}
	return prefix + key
}

// newID is a UUIDv7: in the order of time, as the pages of the consistency check want it.
func newID() string { return uuid.Must(uuid.NewV7()).String() }
