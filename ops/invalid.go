package ops

import (
	"errors"
	"fmt"
	"slices"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/kind"
	"github.com/bluecone-go/bluecone/internal/text"
	"github.com/bluecone-go/bluecone/outbox"
)

// ErrInvalid means that what was asked for makes no sense, and would not later either. The error's text
// names the field and what is wrong with it.
var ErrInvalid = errors.New("invalid")

// ErrOtherTenant means that there is no such thing for the caller, although there is one, of a tenant that the caller may not
// see. The error's text does not say so: show it as if there were nothing.
var ErrOtherTenant = errors.New("it belongs to another tenant")

func invalidf(format string, args ...any) error { return asInvalid(fmt.Errorf(format, args...)) }

// asInvalid is err, as a mistake of the caller's.
func asInvalid(err error) error { return kind.Of(err, ErrInvalid) }

// unknownf is an error about something that does not exist at all.
func unknownf(format string, args ...any) error {
	return kind.Of(kind.Of(fmt.Errorf(format, args...), ErrUnknown), ErrNotFound)
}

// unfitf is an error about something that exists in a state that does not allow what was asked for.
func unfitf(format string, args ...any) error {
	return kind.Of(fmt.Errorf(format, args...), ErrNotFound)
}

// field is a text that somebody has typed.
type field struct{ name, value string }

// validate finds mistakes for which a database would answer an error of its own, or nothing without a reason.
func (q Query) validate() error {
	var errs []error
	for _, f := range []field{
		{"event id", q.EventID},
		{"aggregate type", q.AggregateType},
		{"aggregate id", q.AggregateID},
		{"idempotency key", q.IdempotencyKey},
		{"trace id", q.TraceID},
		{"event type", q.EventType},
		{"consumer", q.Consumer},
		{"fingerprint", q.Fingerprint},
	} {
		if f.value != "" {
			errs = append(errs, text.Key("ops: "+f.name, f.value, longest))
		}
	}
	if q.TenantID < 0 {
		errs = append(errs, fmt.Errorf("ops: tenant id %d: it must not be negative", q.TenantID))
	}
	statuses := append(slices.Clone(openStatuses), outbox.StatusSent)
	if q.Status != "" && !slices.Contains(statuses, q.Status) {
		errs = append(errs, fmt.Errorf("ops: status %s: there is no such status of events, they are %v", text.Quote(string(q.Status)), statuses))
	}
	deliveries := []consumelog.Status{
		consumelog.Pending, consumelog.Processing, consumelog.Failed, consumelog.Dead, consumelog.Success,
		consumelog.Skipped,
	}
	if q.DeliveryStatus != "" && !slices.Contains(deliveries, q.DeliveryStatus) {
		errs = append(errs, fmt.Errorf("ops: delivery status %s: there is no such status of deliveries, they are %v",
			text.Quote(string(q.DeliveryStatus)), deliveries))
	}
	return asInvalid(errors.Join(errs...))
}
