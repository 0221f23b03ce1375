package service

// paid says that an order is paid: what this service reads of the monolith's event.
type paid struct {
	OrderID    string `json:"orderId"`
	UserID     string `json:"userId"`
	TotalCents int64  `json:"totalCents"`
}

// EventType is the durable name.
func (paid) EventType() string { return "order.paid" }

// Aggregate is the order.
func (e paid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

// refunded says that an order is refunded. It belongs to the refund, so it may land before its order's paid.
type refunded struct {
	OrderID  string `json:"orderId"`
	RefundID string `json:"refundId"`
}

// EventType is the durable name.
func (refunded) EventType() string { return "order.refunded" }

// Aggregate is the refund.
func (e refunded) Aggregate() (kind, id string) { return "REFUND", e.RefundID }
