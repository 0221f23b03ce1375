// Package inject lets tests break a delivery at chosen points. Nothing is broken unless
// a test asks for it through bustest.
package inject

// Faults are called, if set, at the points of a delivery that their names tell. Each
// receives the consumer and the events of the transaction.
type Faults struct {
	// BeforeDelivery runs before the transaction begins. An error puts the delivery off.
	BeforeDelivery func(consumer string, eventIDs []string) error
	// BeforeHandler runs in the handler's place first; it may panic.
	BeforeHandler func(consumer, eventID string) error
	// BeforeCommit answers in place of COMMIT, which then does not happen.
	BeforeCommit func(consumer string, eventIDs []string) error
	// AfterCommit answers in place of a COMMIT that did happen.
	AfterCommit func(consumer string, eventIDs []string) error
	// Reorder runs deliveries of different aggregates in the reverse order.
	Reorder bool
}

// Call runs a fault that may not be set.
func Call(f func(string, []string) error, consumer string, eventIDs []string) error {
	if f == nil {
		return nil
	}
	return f(consumer, eventIDs)
}
