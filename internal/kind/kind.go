// Package kind gives errors a kind, which errors.Is finds, and leaves their text alone.
package kind

import "errors"

// ErrUnknown is the kind of an error about something that does not exist at all, beside outbox.ErrNotFound, which may also
// mean that it exists in a state that does not allow what was asked for.
var ErrUnknown = errors.New("there is no such thing")

// Of is err, told apart by kind. Of(nil, kind) is nil.
func Of(err, kind error) error {
	if err == nil {
		return nil
	}
	return &kindError{err, kind}
}

type kindError struct {
	error
	kind error
}

// Is tells the kind.
func (e *kindError) Is(target error) bool { return target == e.kind }

// Unwrap is the error itself.
func (e *kindError) Unwrap() error { return e.error }
