package bus

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// Runner is anything that works until its context ends, and then drains.
type Runner interface {
	Run(ctx context.Context) error
}

// Run runs the runners side by side until ctx ends or one of them fails, which stops
// the others. It returns the first failure, and nil after an orderly end.
func Run(ctx context.Context, runners ...Runner) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range runners {
		g.Go(func() error { return r.Run(ctx) })
	}
	return g.Wait()
}
