package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"

	"connectrpc.com/connect"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/spi"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

// reserving keeps events that nobody sees until they are confirmed.
type reserving struct {
	publishing

	booked spi.Reservations
}

// Reserve keeps an event until it is confirmed.
func (s reserving) Reserve(ctx context.Context, req *connect.Request[ledgerv1.ReserveRequest],
) (*connect.Response[ledgerv1.ReserveResponse], error) {
	e := req.Msg.GetEvent()
	raw, err := s.rawOf(ctx, e, "event")
	if err != nil {
		return nil, err
	}
	ttl := req.Msg.GetTtl().AsDuration()
	if ttl < minTTL || ttl > maxTTL {
		return nil, invalid("ttl is %v: it must be between %v and %v", ttl, minTTL, maxTTL)
	}
	if err := s.checkURL(e.GetCheckUrl()); err != nil {
		return nil, invalid("event.checkUrl: %w", err)
	}
	text, err := jsonCodec{}.Marshal(e)
	if err != nil {
		return nil, s.failed(ctx, "Reserve", err)
	}
	var of spi.Reservation
	err = spi.InTx(ctx, s.db, func(ctx context.Context, tx bun.Tx) (err error) {
		if err := s.wouldSave(ctx, tx, raw, e); err != nil {
			return err
		}
		err = s.booked.Add(ctx, tx, spi.Reservation{
			Token: rand.Text(), EventID: raw.ID, Caller: callerOf(ctx).Name, EventType: raw.Type, Event: string(text), CheckURL: e.GetCheckUrl(),
		}, ttl)
		if err == nil {
			of, _, err = s.booked.OfEvent(ctx, tx, raw.ID)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, s.refused(ctx, "Reserve", err)
	case of.Caller != callerOf(ctx).Name:
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("event: another caller has reserved it"))
	}
	if err := checkReserved(e, of); err != nil {
		return nil, s.refused(ctx, "Reserve", err)
	}
	return connect.NewResponse(&ledgerv1.ReserveResponse{ReservationToken: of.Token, EventId: of.EventID}), nil
}

// wouldSave refuses an event that Confirm could not save: it saves it, and goes back.
func (s reserving) wouldSave(ctx context.Context, tx bun.Tx, raw *spi.RawEvent, e *ledgerv1.Event) error {
	sp, err := tx.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(s.ob.Save(ctx, sp, withOptions(raw, e)), sp.Rollback()); err != nil {
		return err
	}
	return s.checkIDs(ctx, tx, []*ledgerv1.Event{e}, func(int) string { return "event" })
}

// Confirm saves a reserved event.
func (s reserving) Confirm(ctx context.Context, req *connect.Request[ledgerv1.ConfirmRequest],
) (*connect.Response[ledgerv1.ConfirmResponse], error) {
	state, err := s.end(ctx, req.Msg.GetReservationToken(), spi.Confirmed, true)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&ledgerv1.ConfirmResponse{State: state}), nil
}

// Cancel gives a reserved event up.
func (s reserving) Cancel(ctx context.Context, req *connect.Request[ledgerv1.CancelRequest],
) (*connect.Response[ledgerv1.CancelResponse], error) {
	state, err := s.end(ctx, req.Msg.GetReservationToken(), spi.Canceled, true)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&ledgerv1.CancelResponse{State: state}), nil
}

// end brings a reservation to its last state, and saves its event if that is CONFIRMED. A caller ends only its own; the check-back ends
// any.
func (s reserving) end(ctx context.Context, token, state string, isCaller bool) (string, error) {
	if err := given("reservationToken", token); err != nil {
		return "", err
	}
	var refusal error
	err := spi.InTx(ctx, s.db, func(ctx context.Context, tx bun.Tx) error {
		of, found, err := s.booked.Lock(ctx, tx, token)
		switch {
		case err != nil:
			return err
		case !found:
			refusal = connect.NewError(connect.CodeNotFound, errors.New("reservationToken: there is no such reservation"))
		case isCaller && of.Caller != callerOf(ctx).Name:
			refusal = connect.NewError(connect.CodePermissionDenied, errors.New("reservationToken: the reservation belongs to another caller"))
		case of.State == state:
		case of.State != spi.Prepared:
			refusal = connect.NewError(connect.CodeFailedPrecondition, errors.New("the reservation is "+of.State+" already"))
		case state == spi.Confirmed:
			return errors.Join(s.saveReserved(ctx, tx, of), s.booked.End(ctx, tx, token, state))
		default:
			return s.booked.End(ctx, tx, token, state)
		}
		return nil
	})
	if err != nil {
		return "", s.refused(ctx, "Confirm or Cancel", err)
	}
	return state, refusal
}

func (s reserving) saveReserved(ctx context.Context, tx bun.Tx, of spi.Reservation) error {
	var e ledgerv1.Event
	if err := (jsonCodec{}).Unmarshal([]byte(of.Event), &e); err != nil {
		return err
	}
	raw := &spi.RawEvent{
		ID: of.EventID, Type: e.GetEventType(), AggregateType: e.GetAggregateType(), AggregateID: e.GetAggregateId(),
		Key: e.GetIdempotencyKey(), Version: int(e.GetSchemaVersion()), Payload: e.GetPayload(),
	}
	if err := s.ob.Save(ctx, tx, withOptions(raw, &e)); err != nil {
		return err
	}
	return s.checkIDs(ctx, tx, []*ledgerv1.Event{&e}, func(int) string { return "the reserved event" })
}

// QueryReservation tells the state of a reservation.
func (s reserving) QueryReservation(ctx context.Context, req *connect.Request[ledgerv1.QueryReservationRequest],
) (*connect.Response[ledgerv1.QueryReservationResponse], error) {
	if token := req.Msg.GetReservationToken(); token == "" || strings.ContainsRune(token, 0) { // no reservation has it
		return connect.NewResponse(&ledgerv1.QueryReservationResponse{State: "UNKNOWN"}), nil
	}
	of, found, err := s.booked.ByToken(ctx, s.db, req.Msg.GetReservationToken())
	switch {
	case err != nil:
		return nil, s.failed(ctx, "QueryReservation", err)
	case !found:
		of.State = "UNKNOWN"
	case of.Caller != callerOf(ctx).Name:
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("reservationToken: the reservation belongs to another caller"))
	}
	return connect.NewResponse(&ledgerv1.QueryReservationResponse{State: of.State}), nil
}
