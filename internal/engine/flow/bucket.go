package flow

import "time"

// Bucket is a token bucket: it says how many deliveries may start at the rate that a consumer asked for. A burst is a tenth of
// a second's worth, at least one. The zero value is no limit.
type Bucket struct {
	rate, burst float64 // tokens a second, and the most that are kept
	tokens      float64 // there were, when it was last spent from
	spent       time.Time
}

// NewBucket is a full bucket of so many tokens a second; 0 is no limit.
func NewBucket(perSecond float64) Bucket {
	if perSecond == 0 {
		return Bucket{}
	}
	burst := float64(max(int(perSecond/10), 1))
	return Bucket{rate: perSecond, burst: burst, tokens: burst}
}

// Limit is how many of n deliveries may start now, and if that is none, how long it takes until one may.
func (b *Bucket) Limit(now time.Time, n int) (may int, wait time.Duration) {
	if b.rate == 0 {
		return n, 0
	}
	tokens := b.at(now)
	if may = int(tokens); may < 1 {
		return 0, time.Duration((1-tokens)/b.rate*float64(time.Second)) + 1 // not 0: whoever waits for it would ask for ever
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
