// Package kind gives errors a kind, which errors.Is finds, and leaves their text alone.
package kind

import "errors"

// ErrOtherTenant is the kind of an error that says to its caller that there is no such thing, although there is one, of a
// tenant that the caller may not see.
var ErrOtherTenant = errors.New("it belongs to another tenant")

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
