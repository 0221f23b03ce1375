package view

import (
	"context"
	"database/sql"
	"time"

	"github.com/uptrace/bun"
)

// Reservation is a row of an event that is reserved in the ledger, without what it carries.
type Reservation struct {
	EventID, EventType string
	Caller             string // who has reserved it
	State              string
	CheckURL           string // "" for none
	Checks             int    // how often the producer was asked
	LastError          string
	CreatedAt          time.Time
	ExpiresAt          time.Time // its time to live is over then
	NextCheckAt        time.Time // zero if nobody will be asked
	UpdatedAt          time.Time
	IsOver             bool // its time to live is over
}

// ReservationsWaiting lists those that are neither confirmed nor canceled, the next to be asked about first, along idx_next_check.
func ReservationsWaiting(ctx context.Context, r Reader, most, texts int) ([]Reservation, error) {
	return readReservations(ctx, r, texts, "WHERE next_check_at IS NOT NULL ORDER BY next_check_at LIMIT ?", most)
}

// ReservationsChanged lists those that were made, or ended, last, along idx_reservation_updated.
func ReservationsChanged(ctx context.Context, r Reader, most, texts int) ([]Reservation, error) {
	return readReservations(ctx, r, texts, "ORDER BY updated_at DESC LIMIT ?", most)
}

// ReservationsOf reads the reservations of events, by uk_reserved_event, in no order.
func ReservationsOf(ctx context.Context, r Reader, eventIDs []string, texts int) ([]Reservation, error) {
	return readReservations(ctx, r, texts, "WHERE event_id IN (?)", bun.List(eventIDs))
}

func readReservations(ctx context.Context, r Reader, texts int, which string, args ...any) (out []Reservation, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var v Reservation
		var created, expires, next, updated int64
		err := rows.Scan(&v.EventID, &v.EventType, &v.Caller, &v.State, &v.CheckURL, &v.Checks, &v.LastError, &v.IsOver, &created, &expires,
			&next, &updated)
		v.CreatedAt, v.ExpiresAt, v.NextCheckAt, v.UpdatedAt = Instant(created), Instant(expires), Instant(next), Instant(updated)
		out = append(out, v)
		return err
	}, "SELECT "+r.name("event_id")+", "+r.name("event_type")+", "+r.name("caller")+", "+r.name("state")+", "+cut("check_url", texts)+", "+
		r.number("checks")+", "+orEmpty(cut("last_error", texts))+", CASE WHEN expires_at <= "+r.D.Now+" THEN 1 ELSE 0 END, "+
		r.D.Micros("created_at")+", "+r.D.Micros("expires_at")+", "+orZero(r.D.Micros("next_check_at"))+", "+r.D.Micros("updated_at")+
		" FROM bc_reservation "+which, args...)
	return out, err
}
