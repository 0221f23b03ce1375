package bus

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"golang.org/x/sync/errgroup"
)

// Runner is anything that works until its context ends, and then drains.
type Runner interface {
	Run(ctx context.Context) error
}

// Run runs the runners side by side until ctx ends or one of them fails, which stops
// the others. It returns the first failure, and nil after an orderly end. A runner that is nil is refused before any starts.
func Run(ctx context.Context, runners ...Runner) error {
	var errs []error
	for i, r := range runners {
		if isNil(r) {
			errs = append(errs, fmt.Errorf("bus.Run: runner %d of %d is nil: check the error of its constructor, such as pub, err := "+
				"outbox.NewPublisher(ob, b, cfg), "+
				"and run what it returned, bus.Run(ctx, pub)", i+1, len(runners)))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range runners {
		g.Go(func() error { return r.Run(ctx) })
	}
	return g.Wait()
}

func isNil(r Runner) bool {
	if r == nil {
		return true
	}
	v := reflect.ValueOf(r)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
