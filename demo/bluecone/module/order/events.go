package order

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// ID is an order, user, coupon or refund id. Its JSON form is a string; a number, as people
// write it by hand, is read too.
type ID string

// UnmarshalJSON reads a string or a number.
func (id *ID) UnmarshalJSON(b []byte) error {
	if b = bytes.TrimSpace(b); len(b) > 0 && b[0] == '"' || string(b) == "null" {
		return json.Unmarshal(b, (*string)(id))
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("%s is neither a string nor a number", b)
	}
	*id = ID(n.String())
	return nil
}

// CheckoutLocked says that an order waits for its payment and its assets are to be locked.
type CheckoutLocked struct {
	OrderID      ID    `json:"orderId"`
	UserID       ID    `json:"userId"`
	CouponID     ID    `json:"couponId,omitempty"`
	TotalCents   int64 `json:"totalCents"`
	WalletAmount int64 `json:"walletAmount"` // cents
	PointsUsed   int64 `json:"pointsUsed"`
}

// EventType is the durable name.
func (CheckoutLocked) EventType() string { return "order.checkout_locked" }

// Aggregate is the order.
func (e CheckoutLocked) Aggregate() (kind, id string) { return "ORDER", string(e.OrderID) }

// IdempotencyKey makes a checkout happen once.
func (e CheckoutLocked) IdempotencyKey() string { return key(e.OrderID, "checkout_locked") }

// Paid says that an order is paid and its assets are to be spent.
type Paid struct {
	OrderID      ID    `json:"orderId"`
	UserID       ID    `json:"userId"`
	CouponID     ID    `json:"couponId,omitempty"`
	TotalCents   int64 `json:"totalCents"`
	WalletAmount int64 `json:"walletAmount"` // cents
	PointsUsed   int64 `json:"pointsUsed"`
	PointsEarned int64 `json:"pointsEarned"`
}

// EventType is the durable name.
func (Paid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e Paid) Aggregate() (kind, id string) { return "ORDER", string(e.OrderID) }

// IdempotencyKey makes a payment happen once.
func (e Paid) IdempotencyKey() string { return key(e.OrderID, "paid") }

// Canceled says that an order is canceled and its assets are to be given back.
type Canceled struct {
	OrderID      ID    `json:"orderId"`
	UserID       ID    `json:"userId"`
	CouponID     ID    `json:"couponId,omitempty"`
	WalletAmount int64 `json:"walletAmount"` // cents
	PointsUsed   int64 `json:"pointsUsed"`
}

// EventType is the durable name.
func (Canceled) EventType() string { return "order.canceled" }

// Aggregate is the order.
func (e Canceled) Aggregate() (kind, id string) { return "ORDER", string(e.OrderID) }

// IdempotencyKey makes a cancellation happen once.
func (e Canceled) IdempotencyKey() string { return key(e.OrderID, "canceled") }

// Refunded says that an order is refunded. It belongs to the refund, so it may overtake the
// deliveries of the order's own events.
type Refunded struct {
	OrderID      ID    `json:"orderId"`
	RefundID     ID    `json:"refundId"`
	UserID       ID    `json:"userId"`
	WalletAmount int64 `json:"walletAmount"` // cents
	PointsUsed   int64 `json:"pointsUsed"`
	PointsEarned int64 `json:"pointsEarned"`
}

// EventType is the durable name.
func (Refunded) EventType() string { return "order.refunded" }

// Aggregate is the refund.
func (e Refunded) Aggregate() (kind, id string) { return "REFUND", string(e.RefundID) }

// IdempotencyKey makes a refund happen once.
func (e Refunded) IdempotencyKey() string { return "refund:" + string(e.RefundID) + ":refunded" }

// Types are the types of all events of this module.
func Types() []string {
	return []string{CheckoutLocked{}.EventType(), Paid{}.EventType(), Canceled{}.EventType(), Refunded{}.EventType()}
}

func key(id ID, what string) string { return "order:" + string(id) + ":" + what }

func (o Order) paid() Paid {
	return Paid{
		OrderID: ID(o.OrderID), UserID: ID(o.UserID), CouponID: ID(o.CouponID), TotalCents: o.TotalCents,
		WalletAmount: o.WalletCents, PointsUsed: o.Points, PointsEarned: o.earned,
	}
}

func (o Order) canceled() Canceled {
	return Canceled{OrderID: ID(o.OrderID), UserID: ID(o.UserID), CouponID: ID(o.CouponID), WalletAmount: o.WalletCents, PointsUsed: o.Points}
}

func (o Order) refunded() Refunded {
	return Refunded{
		OrderID: ID(o.OrderID), RefundID: ID(o.refundID), UserID: ID(o.UserID), WalletAmount: o.WalletCents,
		PointsUsed: o.Points, PointsEarned: o.earned,
	}
}
