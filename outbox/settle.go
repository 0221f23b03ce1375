package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/telemetry"
)

const settleTries = 5

// settle ends flights: it writes the status of their events and their leases are over.
// A database in trouble is tried again a few times; then the leases expire.
func (s *session) settle(ctx context.Context, flights []*flight) error {
	slices.SortFunc(flights, byID)
	for try := 1; ; try++ {
		err := s.settleOnce(ctx, flights)
		if err == nil || try == settleTries || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(rand.N(time.Duration(try) * 50 * time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// settleOnce settles what is SENT for certain with one statement, and the rest in one transaction.
func (s *session) settleOnce(ctx context.Context, flights []*flight) error {
	if err := s.recheck(ctx, flights); err != nil {
		return err
	}
	var sent, rest []*flight
	for _, f := range flights {
		switch {
		case f.status == StatusSent: // by an earlier try
		case f.delivered():
			sent = append(sent, f)
		default:
			rest = append(rest, f)
		}
	}
	defer s.lanes.Turn()()
	if err := s.write(ctx, s.p.ob.db, sent, ending{status: StatusSent}); err != nil || len(rest) == 0 {
		return err
	}
	return s.p.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error { return s.settleIn(ctx, tx, rest) })
}

func (s *session) settleIn(ctx context.Context, tx bun.Tx, rest []*flight) error {
	// The others' status depends on rows that somebody else may be writing: look at
	// them only under the lock of the event's row.
	mine, err := s.lockMine(ctx, tx, rest)
	if err != nil || len(mine) == 0 {
		return err
	}
	states, err := s.look(ctx, tx, mine)
	if err != nil {
		return err
	}
	groups := make(map[ending][]*flight)
	for _, f := range mine {
		e := s.endingOf(f, states[f.row.ID])
		groups[e] = append(groups[e], f)
	}
	for e, same := range groups {
		if err := s.write(ctx, tx, same, e); err != nil {
			return err
		}
	}
	return nil
}

// look reads what the log says of the flights' deliveries: of an event that went well here, only of those that wait.
func (s *session) look(ctx context.Context, tx bun.Tx, flights []*flight) (map[string]map[string]consumelog.Status, error) {
	var certain, others []string
	waiting := make(map[string]struct{})
	for _, f := range flights {
		if !f.certain() {
			others = append(others, f.row.ID)
			continue
		}
		certain = append(certain, f.row.ID)
		for _, key := range f.waits {
			waiting[key] = struct{}{}
		}
	}
	states, err := s.p.ob.log.States(ctx, tx, others)
	if err != nil || len(certain) == 0 {
		return states, err
	}
	more, err := s.p.ob.log.States(ctx, tx, certain, slices.Sorted(maps.Keys(waiting))...)
	maps.Copy(states, more) // of other events
	return states, err
}

// ending is how the lease of an event ends.
type ending struct {
	status Status
	delay  time.Duration // until it is due again, if it is to be claimed again
	failed bool          // a delivery has failed, and what it said is to be kept
}

// endingOf follows from the states of the deliveries that needed a look.
func (s *session) endingOf(f *flight, states map[string]consumelog.Status) ending {
	e := ending{status: statusOf(states, missing(f, states))}
	switch {
	case e.status == StatusNew && s.draining.Load():
	case e.status == StatusNew:
		e.status, e.delay = StatusScheduled, time.Second
	case e.status != StatusSent:
		for _, st := range states {
			e.failed = e.failed || st == consumelog.Failed || st == consumelog.Dead
		}
	}
	return e
}

// statusOf is the status of an event whose deliveries are in the given states; New means
// that some have no row yet, so that the event must be claimed again.
func statusOf(states map[string]consumelog.Status, missing bool) Status {
	dead := false
	for _, st := range states {
		if st.Waiting() {
			if missing {
				return StatusNew
			}
			return StatusFailed
		}
		dead = dead || st == consumelog.Dead
	}
	switch {
	case missing:
		return StatusNew
	case dead:
		return StatusDead
	}
	return StatusSent
}

// missing reports whether a consumer that must get the event has no row.
func missing(f *flight, states map[string]consumelog.Status) bool {
	for _, key := range f.uncertain() {
		if _, ok := states[key]; !ok {
			return true
		}
	}
	return false
}

// heldBy hides the status in an expression: PostgreSQL would go along the index of open events, which holds
// few when it plans a prepared statement, and very many in a backlog.
const heldBy = "e.locked_by = ? AND CASE WHEN e.status = 'DISPATCHING' THEN 1 END = 1"

// lockMine locks the rows that are still leased by this instance under the flights' tokens.
func (s *session) lockMine(ctx context.Context, tx bun.Tx, flights []*flight) ([]*flight, error) {
	held, err := s.held(ctx, tx, flights, s.p.ob.d.ForUpdate)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	mine := slices.DeleteFunc(slices.Clone(flights), func(f *flight) bool { return !f.isAmong(held) })
	s.countLost(ctx, len(flights)-len(mine))
	return mine, nil
}

// held are the ids, in order, of the events of flights whose leases this instance still has.
func (s *session) held(ctx context.Context, idb bun.IDB, flights []*flight, lock string) (ids []int64, err error) {
	o := s.p.ob
	err = idb.NewRaw("SELECT e.id FROM "+o.d.Keyed(table)+" WHERE "+dialect.IDs(pairsOf(flights))+" AND "+heldBy+" ORDER BY e.id"+lock, s.p.owner).Scan(ctx, &ids)
	return ids, err
}

// isAmong reports whether the flight's event is among ids, which are in order.
func (f *flight) isAmong(ids []int64) bool {
	_, ok := slices.BinarySearch(ids, f.row.OutboxID)
	return ok
}

// write ends leases. Rows that are no longer ours stay as they are.
func (s *session) write(ctx context.Context, tx bun.IDB, flights []*flight, e ending) error {
	if len(flights) == 0 {
		return nil
	}
	if e.status == StatusSent && s.p.ob.cfg.DeleteSent {
		return s.writeSent(ctx, tx, flights)
	}
	return s.update(ctx, tx, flights, e)
}

// writeSent deletes what is SENT, but for events without a consumer: nothing else would tell that
// they have been there.
func (s *session) writeSent(ctx context.Context, tx bun.IDB, flights []*flight) error {
	var traced, untraced []*flight
	for _, f := range flights {
		if len(f.needed) > 0 {
			traced = append(traced, f)
		} else {
			untraced = append(untraced, f)
		}
	}
	if len(traced) > 0 {
		if err := s.end(ctx, tx, traced, StatusSent, s.p.ob.d.DeleteIDs(table, pairsOf(traced), heldBy), s.p.owner); err != nil {
			return err
		}
	}
	return s.update(ctx, tx, untraced, ending{status: StatusSent})
}

func (s *session) update(ctx context.Context, tx bun.IDB, flights []*flight, e ending) error {
	o, set, args := s.p.ob, "status = ?, locked_by = NULL, lock_version = lock_version + 1, updated_at = "+s.p.ob.d.Now, []any{string(e.status)}
	switch {
	case e.status == StatusSent:
		set += ", next_retry_at = NULL, last_error = NULL, sent_at = " + o.d.Now
	case e.status == StatusScheduled || e.status == StatusNew:
		set += ", next_retry_at = " + o.d.After
		args = append(args, dialect.Micro(e.delay))
	case e.failed:
		set += ", next_retry_at = NULL, last_error = (" + lastError + ")"
	default:
		set += ", next_retry_at = NULL, last_error = NULL"
	}
	query := "UPDATE " + o.d.Keyed(table) + " SET " + set + " WHERE " + dialect.Under + " AND " + heldBy
	for version, same := range byVersion(flights) {
		if err := s.end(ctx, o.stmts.On(tx), same, e.status, query, append(args, idsOf(same), version, s.p.owner)...); err != nil {
			return err
		}
	}
	return nil
}

// executor runs statements.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// end runs the statement that ends the leases of flights.
func (s *session) end(ctx context.Context, db executor, flights []*flight, status Status, query string, args ...any) error {
	res, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("settle as %s: %w", status, err)
	}
	if n, err := res.RowsAffected(); err == nil {
		s.countLost(ctx, len(flights)-int(n))
	}
	for _, f := range flights {
		f.status = status
	}
	return nil
}

// lastError is an error of an event's open deliveries. Like [heldBy] it hides their status.
const lastError = "SELECT MAX(CASE WHEN l.status IN ('FAILED', 'DEAD') THEN l.error_message END) FROM bc_event_consume_log l WHERE l.event_id = e.event_id"

// giveBack returns leased events that were not dispatched.
func (s *session) giveBack(ctx context.Context, flights []*flight, e ending, why string) error {
	if len(flights) == 0 {
		return nil
	}
	return s.p.ob.inTx(ctx, func(ctx context.Context, tx bun.Tx) error {
		if err := s.write(ctx, tx, flights, e); err != nil || why == "" {
			return err
		}
		parked := make([]dialect.Pair, len(flights))
		for i, f := range flights {
			parked[i] = dialect.Pair{ID: f.row.OutboxID}
		}
		_, err := tx.ExecContext(ctx, s.p.ob.d.UpdateIDs(table, parked, "last_error = ?", "e.status = 'SCHEDULED'"), why)
		return err
	})
}

func (s *session) countLost(ctx context.Context, n int) {
	if n <= 0 {
		return
	}
	telemetry.Add(ctx, s.p.ob.metrics.LeaseLost, int64(n))
	s.p.ob.logger.WarnContext(ctx, "events were taken over by another instance before they were settled", telemetry.Count, n)
}

// announce counts and logs what has been settled.
func (s *session) announce(ctx context.Context, flights []*flight) {
	o := s.p.ob
	talks := o.logger.Enabled(ctx, slog.LevelDebug)
	for _, f := range flights {
		o.countStatus(ctx, f.status, f.row.ID, f.row.Type)
		if f.status != StatusSent {
			continue
		}
		if f.delivered() && f.row.Metadata[metaInstance] == o.cfg.Instance {
			telemetry.Add(ctx, o.metrics.LocalFirst, 1, telemetry.EventType, f.row.Type)
		}
		if talks {
			o.logger.DebugContext(ctx, "event sent", telemetry.EventID, f.row.ID, telemetry.EventType, f.row.Type, telemetry.AggregateID, f.row.AggregateID,
				telemetry.TraceID, f.env.Metadata[bus.MetaTraceID], telemetry.RequestID, f.env.Metadata[bus.MetaRequestID])
		}
	}
}

// renew prolongs the leases of all flights. A flight whose lease is lost is cancelled. It waits for nobody:
// a row that somebody writes is being settled, or is lost in a moment.
func (s *session) renew(ctx context.Context) error {
	flights := s.inFlight()
	if len(flights) == 0 {
		return s.lanes.Renew(ctx)
	}
	o := s.p.ob
	var now int64
	var renewed []int64
	err := o.inTx(ctx, func(ctx context.Context, tx bun.Tx) (err error) {
		if err = tx.QueryRowContext(ctx, "SELECT "+o.d.Micros(o.d.Now)).Scan(&now); err != nil {
			return err
		}
		if renewed, err = s.held(ctx, tx, flights, o.d.SkipLocked); err != nil || len(renewed) == 0 {
			return err
		}
		_, err = tx.ExecContext(ctx, o.d.UpdateIDs(table, dialect.Pairs(renewed), "next_retry_at = "+o.d.After, "1 = 1"), dialect.Micro(s.p.cfg.Lease))
		return err
	})
	if err != nil {
		return fmt.Errorf("outbox: renew leases: %w", err)
	}
	held, err := s.held(ctx, o.db, flights, "")
	if err != nil {
		return fmt.Errorf("outbox: renew leases: %w", err)
	}
	var lost []*bus.Lease
	for _, f := range flights {
		switch {
		case f.isAmong(renewed):
			f.lease.Extend(now + dialect.Micro(s.p.cfg.Lease))
		case !f.isAmong(held) && f.open.Load() > 0:
			lost = append(lost, &f.lease)
		}
	}
	s.lanes.Lose(lost...)
	return s.lanes.Renew(ctx)
}
