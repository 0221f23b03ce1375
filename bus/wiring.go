package bus

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Err returns everything that is wrong with what has been registered so far, nil if that is nothing.
// outbox.NewPublisher returns it, so a program has no need to call it.
func (b *Bus) Err() error {
	b.all.Lock()
	defer b.all.Unlock()
	all := slices.Concat(b.mistakes, b.withoutHandlers(), b.idleUpcasters())
	if len(all) == 0 {
		return nil
	}
	return &wiringError{all}
}

// refuse notes a mistake in the wiring. It needs the lock of what is registered.
func (b *Bus) refuse(err error) {
	b.mistakes = append(b.mistakes, err)
}

// isLate refuses what is registered after a publisher has started: no lane was made for it. It needs the lock of what is registered.
func (b *Bus) isLate(what string) bool {
	if !b.all.Closed {
		return false
	}
	err := fmt.Errorf("%s was registered after a publisher had started: register everything first, then call outbox.NewPublisher and "+
		"bus.Run", what)
	b.all.Late = true
	b.all.Logger.Error("bus: nobody will run what was registered late", telemetry.Err, err)
	b.refuse(err)
	return true
}

// withoutHandlers finds consumers that would never get an event. It needs the lock of what is registered.
func (b *Bus) withoutHandlers() (mistakes []error) {
	for _, c := range b.consumers {
		if len(c.EventTypes()) == 0 && !c.refused {
			mistakes = append(mistakes, fmt.Errorf("bus.Consumer %q has no handler, so it would never get an event: register one, such as "+
				"bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[OrderPaid]) error { … }), or remove the consumer", c.Name()))
		}
	}
	return mistakes
}

// idleUpcasters finds steps that would never be taken. It needs the lock of what is registered.
func (b *Bus) idleUpcasters() (mistakes []error) {
	known := make(map[string]int) // the newest version that a handler takes, by event type
	for _, c := range b.consumers {
		for _, t := range c.EventTypes() {
			known[t] = max(known[t], c.c.Handler(t).Version)
		}
	}
	types := sortedKeys(known)
	for _, t := range sortedKeys(b.all.Upcasters) {
		for _, from := range sortedKeys(b.all.Upcasters[t]) {
			switch newest := known[t]; {
			case newest == 0:
				mistakes = append(mistakes, fmt.Errorf("bus.Upcast %q from version %d: no consumer has a handler for that type, so nobody would "+
					"take the step: "+
					"name a type that is handled, such as b.Upcast(%q, %d, fn) (handled: %s)", t, from, example(types), from, strings.Join(types, ", ")))
			case from >= newest:
				mistakes = append(mistakes, fmt.Errorf("bus.Upcast %q from version %d: the handlers take version %d, so nobody would take the step: "+
					"let the Go type E of the event say func (E) SchemaVersion() int { return %d }", t, from, newest, from+1))
			}
		}
	}
	return mistakes
}

func example(types []string) string {
	if len(types) == 0 {
		return "order.paid"
	}
	return types[0]
}

func sortedKeys[K string | int, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// wiringError lists all mistakes, one a line.
type wiringError struct{ mistakes []error }

func (e *wiringError) Error() string {
	if len(e.mistakes) == 1 {
		return e.mistakes[0].Error()
	}
	return fmt.Sprintf("%d mistakes in the wiring:\n%v", len(e.mistakes), errors.Join(e.mistakes...))
}

func (e *wiringError) Unwrap() []error { return e.mistakes }
