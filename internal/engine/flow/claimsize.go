package flow

// ClaimSize says how many deliveries of one kind a claim takes from the consume log: as many as fitted into the room for payloads last
// time, and twice as many after all did. Each one that is given back was leased, and its length read, for nothing.
type ClaimSize struct{ limit, most int }

// NewClaimSize begins with the most that a claim takes.
func NewClaimSize(most int) ClaimSize { return ClaimSize{limit: most, most: most} }

// Observe learns how many of a claim fitted, and whether all did.
func (c *ClaimSize) Observe(fitted int, all bool) {
	if all {
		c.Grow()
	} else {
		c.Shrink(fitted)
	}
}

// Grow doubles the limit.
func (c *ClaimSize) Grow() { c.limit = min(2*c.limit, c.most) }

// Shrink makes the limit what fitted, at least one.
func (c *ClaimSize) Shrink(fitted int) { c.limit = max(fitted, 1) }

// Limit is how many deliveries of a kind to claim.
func (c *ClaimSize) Limit() int { return c.limit }
