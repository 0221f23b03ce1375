package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Reservations are the rows of bc_reservation.
type Reservations struct{ d dialect.Dialect }

// NewReservations returns the statements in the words of a database.
func NewReservations(d dialect.Dialect) Reservations { return Reservations{d} }

// The states of a reservation.
const (
	Prepared  = "PREPARED"
	Confirmed = "CONFIRMED"
	Canceled  = "CANCELED"
)

// Reservation is a reserved event.
type Reservation struct {
	Token, EventID string
	Caller         string
	EventType      string
	State          string
	Event          string // JSON
	CheckURL       string // "" for none
	Checks         int    // how often the producer was asked
}

const reservationColumns = "token, event_id, caller, event_type, state, event, check_url, checks"

// Add reserves an event, unless its id is reserved. It expires after a while, and the producer is asked then.
func (r Reservations) Add(ctx context.Context, tx bun.Tx, n Reservation, ttl time.Duration) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO bc_reservation (token, event_id, caller, event_type, state, event, check_url, expires_at, "+
		"next_check_at, created_at, updated_at) VALUES (?, ?, ?, ?, 'PREPARED', ?, ?, "+r.d.After+", "+r.d.After+", "+r.d.Now+", "+r.d.Now+")"+
		r.d.Ignore("event_id"), n.Token, n.EventID, n.Caller, n.EventType, n.Event, n.CheckURL, dialect.Micro(ttl), dialect.Micro(ttl))
	if err != nil {
		return fmt.Errorf("reserve event %s: %w", n.EventID, err)
	}
	return nil
}

// OfEvent reads the reservation of an event, by uk_reserved_event; false if there is none.
func (r Reservations) OfEvent(ctx context.Context, idb bun.IDB, eventID string) (Reservation, bool, error) {
	return r.one(ctx, idb, "event_id = ?", eventID)
}

// ByToken reads a reservation by the primary key; false if there is none.
func (r Reservations) ByToken(ctx context.Context, idb bun.IDB, token string) (Reservation, bool, error) {
	return r.one(ctx, idb, "token = ?", token)
}

// Lock is [Reservations.ByToken], and locks the row.
func (r Reservations) Lock(ctx context.Context, tx bun.Tx, token string) (Reservation, bool, error) {
	return r.one(ctx, tx, "token = ?"+r.d.ForUpdate, token)
}

func (r Reservations) one(ctx context.Context, idb bun.IDB, where string, arg any) (of Reservation, found bool, err error) {
	err = idb.QueryRowContext(ctx, "SELECT "+reservationColumns+" FROM bc_reservation WHERE "+where, arg).
		Scan(&of.Token, &of.EventID, &of.Caller, &of.EventType, &of.State, &of.Event, &of.CheckURL, &of.Checks)
	if errors.Is(err, sql.ErrNoRows) {
		return of, false, nil
	}
	if err != nil {
		return of, false, fmt.Errorf("read a reservation: %w", err)
	}
	return of, true, nil
}

// End gives a reservation, whose row the transaction has locked, its last state, by the primary key.
func (r Reservations) End(ctx context.Context, tx bun.Tx, token, state string) error {
	_, err := tx.ExecContext(ctx, "UPDATE bc_reservation SET state = ?, next_check_at = NULL, last_error = NULL, updated_at = "+r.d.Now+
		" WHERE token = ?", state, token)
	if err != nil {
		return fmt.Errorf("end a reservation: %w", err)
	}
	return nil
}

// Due leases reservations whose producers are to be asked, along idx_next_check, at most so many: nobody else asks them for a while.
func (r Reservations) Due(ctx context.Context, tx bun.Tx, lease time.Duration, most int) (due []Reservation, err error) {
	err = EachRow(ctx, tx, func(rows *sql.Rows) error {
		var of Reservation
		err := rows.Scan(&of.Token, &of.EventID, &of.Caller, &of.EventType, &of.State, &of.Event, &of.CheckURL, &of.Checks)
		due = append(due, of)
		return err
	}, "SELECT "+reservationColumns+" FROM bc_reservation WHERE next_check_at <= "+r.d.Now+" ORDER BY next_check_at LIMIT ?"+
		r.d.SkipLocked, most)
	if err != nil {
		return nil, fmt.Errorf("look for reservations to ask about: %w", err)
	}
	for _, of := range due {
		_, err := tx.ExecContext(ctx, "UPDATE bc_reservation SET next_check_at = "+r.d.After+" WHERE token = ?", dialect.Micro(lease), of.Token)
		if err != nil {
			return nil, fmt.Errorf("lease a reservation: %w", err)
		}
	}
	return due, nil
}

// AskAgain notes that a producer did not say what has become of a reservation that is still PREPARED, and when to ask again, by the
// primary key.
func (r Reservations) AskAgain(ctx context.Context, idb bun.IDB, token string, in time.Duration, why string) error {
	_, err := idb.ExecContext(ctx, "UPDATE bc_reservation SET checks = checks + 1, last_error = ?, next_check_at = "+r.d.After+
		" WHERE token = ? AND state = 'PREPARED'", text.Clean(why, text.MaxError), dialect.Micro(in), token)
	if err != nil {
		return fmt.Errorf("note that a producer was asked: %w", err)
	}
	return nil
}

// Forget removes reservations that ended longer ago than this, along idx_reservation_updated.
func (r Reservations) Forget(ctx context.Context, idb bun.IDB, age time.Duration) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_reservation WHERE updated_at < "+r.d.After+" AND state <> 'PREPARED'", -dialect.Micro(age))
	if err != nil {
		return fmt.Errorf("remove reservations: %w", err)
	}
	return nil
}
