package handler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/uptrace/bun"
	"go.opentelemetry.io/otel/trace"

	"github.com/bluecone-go/bluecone/internal/contain"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/inject"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// Upcaster turns a stored payload of one schema version into the next.
type Upcaster = func(payload json.RawMessage) (json.RawMessage, error)

// Registrations are what was registered with one bus, and what its consumers work with. The lock is held while something is
// registered; after Close nothing changes any more.
type Registrations struct {
	DB           *bun.DB
	Log          store.Log
	Logger       *slog.Logger
	Tracer       trace.Tracer
	Metrics      *telemetry.Metrics
	OnDeadLetter func(ctx context.Context, d DeadLetter) // nil if nobody wants to know
	Faults       inject.Faults
	// Around runs a handler inside of the middleware that there is; nil if there is none.
	Around func(ctx context.Context, c *Consumer, ms []*Message, run func(context.Context) error) error

	sync.Mutex
	Consumers  []*Consumer
	Unconsumed map[string]struct{}         // event types
	Upcasters  map[string]map[int]Upcaster // by event type and the version from which they lead
	Closed     bool                        // a publisher has started: no lane would be made for what comes
	Late       bool                        // something was registered after that
}

// DeadLetter is a delivery that the engine has given up.
type DeadLetter struct {
	Event         *eventrow.Row
	Consumer, Key string
	Attempts      int
	Error         string
}

// NewRegistrations returns empty ones.
func NewRegistrations() *Registrations {
	return &Registrations{Unconsumed: make(map[string]struct{}), Upcasters: make(map[string]map[int]Upcaster)}
}

// Close ends the time of registering.
func (r *Registrations) Close() {
	r.Lock()
	defer r.Unlock()
	r.Closed = true
}

// HasLate reports whether something was registered after [Registrations.Close].
func (r *Registrations) HasLate() bool {
	r.Lock()
	defer r.Unlock()
	return r.Late
}

// ByName are the consumers, in the order of their names.
func (r *Registrations) ByName() []*Consumer {
	r.Lock()
	defer r.Unlock()
	return slices.SortedFunc(slices.Values(r.Consumers), func(a, b *Consumer) int { return strings.Compare(a.Name, b.Name) })
}

// Ignores reports whether it was said that nobody consumes the event type.
func (r *Registrations) Ignores(eventType string) bool {
	_, ok := r.Unconsumed[eventType]
	return ok
}

// WorksIn reports whether the consumers work in db, or in a copy that shares its pool. Registrations without a database work
// nowhere else: bus.Bus.Err says what is wrong with them.
func (r *Registrations) WorksIn(db *bun.DB) bool { return r.DB == nil || r.DB.DB == db.DB }

// Inject makes deliveries fail at chosen points, for tests.
func (r *Registrations) Inject(f inject.Faults) { r.Faults = f }

// HasOneWriter tells whether the database lets one transaction write at a time.
func (r *Registrations) HasOneWriter() bool {
	d, err := dialect.Of(r.DB)
	return err == nil && d.Name == "sqlite"
}

// decode upcasts and decodes a payload. Both call code of the user's, whose panic would end the process, again after each start.
func (r *Registrations) decode(event *eventrow.Row, h *Handler) (payload any, err error) {
	if h.Raw {
		return h.Decode(event.Payload)
	}
	err = contain.Call("handler", func() error {
		upcast, err := r.Upcast(event.Type, event.SchemaVersion, h.Version, event.Payload)
		if err == nil {
			payload, err = h.Decode(upcast)
		}
		return err
	})
	if p, ok := errors.AsType[*contain.PanicError](err); ok {
		if p.Stack != "" {
			p.Value = fmt.Sprintf("decoding it, with a %T", p.Value) // the value itself may be of the payload
		}
		return nil, fmt.Errorf("payload of %s does not decode: %w", event.Type, p)
	}
	return payload, err
}

// Upcast is a stored payload in the schema version that this code knows.
func (r *Registrations) Upcast(eventType string, stored, known int, payload json.RawMessage) (json.RawMessage, error) {
	stored = max(stored, 1)
	for version := stored; version < known; version++ {
		up := r.Upcasters[eventType][version]
		if up == nil {
			return nil, fmt.Errorf("%s has schema version %d, this code knows version %d and has no upcaster from %d", eventType, stored, known,
				version)
		}
		var err error
		if payload, err = up(payload); err != nil {
			return nil, fmt.Errorf("upcast %s from version %d: %w", eventType, version, err)
		}
	}
	if stored > known {
		return nil, fmt.Errorf("%s has schema version %d, newer than version %d of this code", eventType, stored, known)
	}
	return payload, nil
}

// Access is embedded in a bus and in its consumers. Its method is not exported, so users do not see it; [Of] calls it.
type Access struct{ all *Registrations }

// AccessTo gives access to registrations.
func AccessTo(all *Registrations) Access { return Access{all} }

func (a Access) registrations() *Registrations { return a.all }

// Bus is what embeds an [Access]: a *bus.Bus or a *bus.Consumer, which this package must not import.
type Bus interface{ registrations() *Registrations }

// Of are the registrations of a bus, or of that of a consumer. It is for the packages of this module.
func Of(b Bus) *Registrations { return b.registrations() }

// VersionOf is the schema version that code saving the event writes: what its bus.Versioned says, at least 1.
func VersionOf(event any) int {
	if v, ok := event.(interface{ SchemaVersion() int }); ok {
		return max(v.SchemaVersion(), 1)
	}
	return 1
}
