package alert

import (
	"context"
	"time"
)

// Shift puts the machine's clock ahead.
func Shift(a *Alerter, by time.Duration) {
	a.now = func() time.Time { return time.Now().Add(by) }
}

// Observe looks and records, and sends nothing: as if the process died in between.
func Observe(ctx context.Context, a *Alerter) error {
	l := look{db: a.db, d: a.book.d, cfg: a.cfg}
	found, err := l.all(ctx)
	if err != nil {
		return err
	}
	return a.book.observe(ctx, found)
}
