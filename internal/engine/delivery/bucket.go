package delivery

import (
	"time"

	"golang.org/x/time/rate"
)

// bucket is a token bucket: how many deliveries may start by the rate that the consumer asked for.
type bucket struct {
	limiter *rate.Limiter // nil: no limit
}

func newBucket(perSecond float64) bucket {
	if perSecond == 0 {
		return bucket{}
	}
	burst := max(int(perSecond/10), 1) // a tenth of a second's worth
	return bucket{limiter: rate.NewLimiter(rate.Limit(perSecond), burst)}
}

// tokens tells how many of n deliveries may start now, and if that is none, how long it takes until one may.
func (b *bucket) tokens(n int) (now int, wait time.Duration) {
	if b.limiter == nil {
		return n, 0
	}
	tokens := b.limiter.Tokens()
	have := int(tokens)
	if have < 1 {
		wait = time.Duration((1 - tokens) / float64(b.limiter.Limit()) * float64(time.Second))
	}
	return min(n, have), wait
}

func (b *bucket) spend(n int) {
	if b.limiter != nil {
		b.limiter.ReserveN(time.Now(), n)
	}
}

// takes is how long n deliveries take at the rate that was asked for.
func (b *bucket) takes(n int) time.Duration {
	if b.limiter == nil {
		return 0
	}
	return time.Duration(float64(n) / float64(b.limiter.Limit()) * float64(time.Second))
}
