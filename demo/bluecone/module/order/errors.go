package order

import (
	"errors"
	"fmt"
)

// Kind says what a caller can do about an [Error].
type Kind int

// The kinds of errors.
const (
	Invalid  Kind = iota // the request makes no sense: change it
	NotFound             // there is no such thing
	Conflict             // not in this state
)

// Error is a refusal by the rules of the business.
type Error struct {
	Kind Kind
	Code string // for programs, such as ORDER_CANCELED
	Text string // for people
}

func (e *Error) Error() string { return e.Text }

func refuse(kind Kind, code, format string, args ...any) error {
	return &Error{Kind: kind, Code: code, Text: fmt.Sprintf(format, args...)}
}

// ErrPayNoUsed means that a payment belongs to another order.
var ErrPayNoUsed = errors.New("the payment number is used")
