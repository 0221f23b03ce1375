package ops

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/internal/store/view"
)

// ReservationState says what has become of a reservation.
type ReservationState string

// The states of a reservation.
const (
	Prepared  ReservationState = "PREPARED"  // nobody sees the event yet
	Confirmed ReservationState = "CONFIRMED" // it is an event like all others
	Canceled  ReservationState = "CANCELED"  // nobody will ever see it
)

// Reservation is an event that a producer has reserved in the ledger, without what it carries. One that has ended is kept for a week.
type Reservation struct {
	EventID   string           `json:"eventId"`
	EventType string           `json:"eventType"`
	Producer  string           `json:"producer"` // the caller of the ledger who has reserved it
	State     ReservationState `json:"state"`
	// CheckHost is the host that is asked what has become of it, empty if there is none to ask.
	CheckHost string    `json:"checkHost,omitempty"`
	Checks    int       `json:"checks"`              // how often the producer was asked and did not say
	LastError string    `json:"lastError,omitempty"` // why it did not say, the last time
	CreatedAt time.Time `json:"createdAt"`
	ExpiresAt time.Time `json:"expiresAt"`          // its time to live is over then
	Over      bool      `json:"over"`               // it is PREPARED, and its time to live is over
	NextCheck time.Time `json:"nextCheck,omitzero"` // when its producer is asked next
	UpdatedAt time.Time `json:"updatedAt"`          // when it was made, or ended
}

// Reservations lists the events that are reserved in the ledger: those that are neither confirmed nor canceled, the next to be asked
// about first, then those that ended last. It reads at most 500 of each.
func (o *Ops) Reservations(ctx context.Context) ([]Reservation, error) {
	if err := CallerOf(ctx).whole("the list of reservations"); err != nil {
		return nil, err
	}
	return share(ctx, o.access, "reservations", nil, o.access.reservations)
}

func (a *access) reservations(ctx context.Context) ([]Reservation, error) {
	waiting, err := view.ReservationsWaiting(ctx, a.sql, maxReservations, listText)
	if err != nil {
		return nil, fmt.Errorf("ops: read reservations: %w", err)
	}
	changed, err := view.ReservationsChanged(ctx, a.sql, maxReservations, listText)
	if err != nil {
		return nil, fmt.Errorf("ops: read reservations: %w", err)
	}
	changed = slices.DeleteFunc(changed, func(r view.Reservation) bool { return r.State == string(Prepared) })
	return reservationsOf(append(waiting, changed...)), nil
}

func reservationsOf(rows []view.Reservation) []Reservation {
	out := []Reservation{}
	for _, r := range rows {
		state := ReservationState(r.State)
		out = append(out, Reservation{
			EventID: r.EventID, EventType: r.EventType, Producer: r.Caller, State: state, CheckHost: hostOf(r.CheckURL), Checks: r.Checks,
			LastError: shown(r.LastError, listText), CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, Over: r.IsOver && state == Prepared,
			NextCheck: r.NextCheckAt, UpdatedAt: r.UpdatedAt,
		})
	}
	return out
}

// hostOf is the part of a check URL that holds no secret.
func hostOf(checkURL string) string {
	u, err := url.Parse(checkURL)
	if err != nil {
		return ""
	}
	return u.Host
}

// reserved reads the reservations of the story's events, and of the key. Who is limited to some tenants learns only of those that have
// become events of theirs: whose a reservation is stands in the event.
func (t *tracer) reserved(ctx context.Context) error {
	var ids []string
	for _, e := range t.story.Events {
		ids = append(ids, e.EventID)
	}
	if !CallerOf(ctx).limited() {
		ids = unique(append(ids, t.story.Key))
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := view.ReservationsOf(ctx, t.access.sql, ids, listText)
	if err != nil {
		return fmt.Errorf("ops: read reservations: %w", err)
	}
	t.story.Reservations = reservationsOf(rows)
	if CallerOf(ctx).limited() {
		t.story.Reservations = slices.DeleteFunc(t.story.Reservations, func(r Reservation) bool { return r.State != Confirmed })
	}
	return nil
}

// reservationMoments tell when an event was reserved, and what became of that.
func reservationMoments(r Reservation) []Moment {
	args := map[string]string{"type": r.EventType, "producer": r.Producer, "until": at(r.ExpiresAt)}
	told := []Moment{happened(r.CreatedAt, MomentReserved, r.Producer, "{producer} reserved {type} until {until}", args)}
	switch r.State {
	case Confirmed:
		told = append(told, happened(r.UpdatedAt, MomentConfirmed, "", "the reservation of {type} by {producer} was confirmed", args))
	case Canceled:
		told = append(told, happened(r.UpdatedAt, MomentCanceled, "", "the reservation of {type} by {producer} was canceled", args))
	case Prepared:
	}
	for i := range told {
		told[i].EventID = r.EventID
	}
	return told
}

// reservationRules find a reservation that keeps an event from its consumers.
func reservationRules(r Reservation) []Finding {
	level, says, remedy := Info, "", ""
	args := map[string]string{"event": r.EventID, "type": r.EventType, "producer": r.Producer}
	switch {
	case r.State == Canceled:
		says = "{producer} reserved {type}, and the reservation was canceled at {canceled}: nobody gets the event."
		args["canceled"] = at(r.UpdatedAt)
	case r.State != Prepared:
		return nil
	case !r.Over:
		says = "{producer} has reserved {type} until {until}, and neither confirmed nor canceled it yet: no consumer sees the event."
		args["until"] = at(r.ExpiresAt)
	default:
		level, args["over"] = Warn, at(r.ExpiresAt)
		remedy = "See that a ledger runs and reaches the producer's check URL, or confirm or cancel the reservation."
		says = "{producer} reserved {type} until {over}, and has not said what became of it; nobody has been asked yet."
		if r.LastError != "" {
			says = "{producer} reserved {type} until {over}, and does not say what became of it; asked {n} times, the last time: {error}."
			args["n"], args["error"] = strconv.Itoa(r.Checks), firstLine(r.LastError)
		}
	}
	f := fired(RuleReservation, level, Event{}, "", says, remedy, args)
	f.EventID = r.EventID
	return []Finding{f}
}
