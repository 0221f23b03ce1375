package outbox

import (
	"context"
	"fmt"
	"time"
)

// turn takes what was handed over, or else claims.
func (s *session) turn(ctx context.Context, handed, beat, full bool) error {
	if handed {
		if done, err := s.receive(ctx); done || err != nil {
			return err
		}
	}
	return s.cycle(ctx, beat, full)
}

// cycle claims what is due and hands it to the lanes.
func (s *session) cycle(ctx context.Context, beat, full bool) error {
	due := due{fresh: true}
	var err error
	if full {
		if err := s.sweep(ctx); err != nil {
			return err
		}
	}
	if beat {
		if due, err = s.peek(ctx); err != nil {
			return err
		}
	}
	for _, claims := range []struct {
		wanted bool
		where  string
	}{{due.expired, s.expired()}, {due.scheduled, s.scheduled()}, {due.fresh && (full || !s.lookout.rests(s.lanes.Dry(), s.front)), dueNew}} {
		if claims.wanted {
			if err := s.claimAll(ctx, claims.where, full); err != nil {
				return err
			}
		}
	}
	if !full && !due.retries {
		return nil
	}
	if full { // it also retries what its own claims have made wait
		if err := s.writeDeferred(ctx); err != nil {
			return err
		}
	}
	return s.lanes.Retry(ctx)
}

// claimAll claims until nothing more is due, as far as there is room.
func (s *session) claimAll(ctx context.Context, where string, thorough bool) error {
	front, at, found := thorough, place{}, false // where a thorough walk goes on, and whether it has found any
	for ctx.Err() == nil {
		s.patience.Reset(s.p.cfg.Lease)
		room, window := s.lanes.Room()
		size := min(s.free(), room, s.size)
		if size < worth(min(s.most, window, s.size)) { // while there are more, a claim should be a good one
			select {
			case <-s.settled:
			case <-s.lanes.Freed():
			case <-time.After(20 * time.Millisecond): // a lane may have to fall behind
			case <-ctx.Done():
				return nil
			}
			continue
		}
		began := time.Now()
		from := at
		if from == (place{}) && where == dueNew {
			from = s.lookout.from(front)
		}
		c, err := s.claim(ctx, where, size, from)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if len(c.rows) > 0 {
			if err := s.dispatch(ctx, c); err != nil {
				return err
			}
		}
		found = found || len(c.rows) > 0
		s.size = s.claimSize(c.full)
		if len(c.rows) > 0 && c.full {
			if err := s.fair(ctx, c); err != nil {
				return err
			}
		}
		switch wait := s.lookout.wait(); {
		case where == dueNew && c.inTheWay() && !thorough:
			s.lookout.rest(took, s.front)
			return nil
		case len(c.rows) > 0 && c.full:
			front = false
		case c.full && thorough && at.isBefore(c.last): // all must wait, but there may be others behind them
			at = c.last
		case c.from == place{}:
			if c.blocked() {
				s.lookout.rest(took, s.front)
			}
			return nil
		case thorough && !found:
			return nil
		case thorough || wait <= 0:
			front, at, found = true, place{}, false
		default:
			s.lookout.later(wait, s.front)
			return nil
		}
	}
	return nil
}

const (
	backlogClaim     = 5   // times BatchSize
	mostBacklogClaim = 500 // unless BatchSize is more
)

// claimSize is how many events the next claim takes: in a backlog, larger ones cost less for each event.
func (s *session) claimSize(backlog bool) int {
	if !backlog {
		return s.p.cfg.BatchSize
	}
	return max(s.p.cfg.BatchSize, min(backlogClaim*s.p.cfg.BatchSize, mostBacklogClaim))
}

// due says what is due: kinds of events, and deliveries that wait.
type due struct{ fresh, scheduled, expired, retries bool }

// peek looks, in one statement that locks nothing, whether a claim is worth it. An instance that has
// nothing to do asks nothing else.
func (s *session) peek(ctx context.Context) (d due, err error) {
	flag := func(cond string) string { return "CASE WHEN " + cond + " THEN 1 ELSE 0 END" }
	exists := func(where string) string { return flag("EXISTS (SELECT 1 FROM " + table + " e WHERE " + where + ")") }
	retries, args := s.lanes.Waiting()
	var found [4]int
	err = s.p.ob.db.QueryRowContext(ctx, "SELECT "+exists(dueNew)+", "+exists(s.scheduled())+", "+exists(s.expired())+", "+flag(retries), args...).
		Scan(&found[0], &found[1], &found[2], &found[3])
	if err != nil {
		return due{}, fmt.Errorf("outbox: look for due events: %w", err)
	}
	return due{found[0] == 1, found[1] == 1, found[2] == 1, found[3] == 1}, nil
}

// worth is how much room there has to be for a claim, where at most so many fit.
func worth(atMost int) int { return atMost/2 + 1 }
