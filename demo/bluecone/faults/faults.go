// Package faults makes single consumers of the demo misbehave on request.
package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/bus"
)

// Set holds the faults of one instance. The zero value has none.
type Set struct {
	mu    sync.Mutex
	modes map[string]fault
}

type fault struct {
	mode  string
	delay time.Duration
}

// Put makes a consumer misbehave: "error", "panic", "slow", "permanent", or "off".
func (s *Set) Put(consumer, mode string, delay time.Duration) error {
	switch mode {
	case "error", "panic", "slow", "permanent", "off":
	default:
		return fmt.Errorf("mode %q is unknown: use error, panic, slow, permanent or off", mode)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.modes == nil {
		s.modes = make(map[string]fault)
	}
	s.modes[consumer] = fault{mode, delay}
	return nil
}

var errInjected = errors.New("injected fault")

// Hit misbehaves as the consumer has been told to.
func (s *Set) Hit(ctx context.Context, consumer string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	f := s.modes[consumer]
	s.mu.Unlock()
	if f.delay > 0 {
		select {
		case <-time.After(f.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch f.mode {
	case "error":
		return errInjected
	case "permanent":
		return bus.Permanent(errInjected)
	case "panic":
		panic(errInjected)
	}
	return nil
}
