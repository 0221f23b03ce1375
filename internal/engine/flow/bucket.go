package flow

import "time"

// Bucket is a token bucket: it says how many deliveries may start at the rate that a consumer asked for, or how many calls somebody may
// make. The zero value is no limit.
type Bucket struct {
	rate, burst float64 // tokens a second, and the most that are kept
	tokens      float64 // there were, when it was last spent from
	spent       time.Time
}

// NewBucket is a full bucket of so many tokens a second; 0 is no limit. A burst is a tenth of a second's worth, at least one.
func NewBucket(perSecond float64) Bucket {
	if perSecond == 0 {
		return Bucket{}
	}
	return BucketOf(perSecond, max(int(perSecond/10), 1))
}

// BucketOf is a full bucket of so many tokens a second, more than 0, which keeps at most a burst of them.
func BucketOf(perSecond float64, burst int) Bucket {
	return Bucket{rate: perSecond, burst: float64(burst), tokens: float64(burst)}
}

// Change gives the bucket another rate and burst, from now on.
func (b *Bucket) Change(now time.Time, perSecond float64, burst int) {
	b.tokens, b.spent = b.at(now), now
	b.rate, b.burst = perSecond, float64(burst)
}

// IsFull reports whether nothing was taken that has not come back.
func (b *Bucket) IsFull(now time.Time) bool { return b.at(now) >= b.burst }

// Limit is how many of n deliveries may start now, and if that is none, how long it takes until one may.
func (b *Bucket) Limit(now time.Time, n int) (may int, wait time.Duration) {
	if b.rate == 0 {
		return n, 0
	}
	tokens := b.at(now)
	if may = int(tokens); may < 1 {
		return 0, time.Duration((1-tokens)/b.rate*float64(time.Second)) + 1 // not 0: the lane would ask again without a pause
	}
	return min(n, may), 0
}

// Spend takes a token for each of n deliveries that start: no more than [Bucket.Limit] allows.
func (b *Bucket) Spend(now time.Time, n int) {
	if b.rate != 0 {
		b.tokens, b.spent = b.at(now)-float64(n), now
	}
}

// Takes is how long n deliveries take at the rate.
func (b *Bucket) Takes(n int) time.Duration {
	if b.rate == 0 {
		return 0
	}
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// at is how many tokens there are now.
func (b *Bucket) at(now time.Time) float64 {
	passed := max(now.Sub(b.spent), 0)
	return min(b.tokens+passed.Seconds()*b.rate, b.burst)
}
