package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

// until runs an inbox, to which nothing comes, until the statuses of the undecodable events are as they should be, in their order.
func (s *service) until(cfg inbox.Config, want ...string) {
	s.t.Helper()
	in, err := inbox.New(s.Outbox, cfg, script(func(ctx context.Context, _ relay.Sink) error {
		for deadline := time.Now().Add(testdb.Patience()); ; {
			found := s.undecodable("status")
			if fmt.Sprint(found) == fmt.Sprint(want) {
				return nil
			}
			require.True(s.t, time.Now().Before(deadline), "they are %v, not %v", found, want)
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(20 * time.Millisecond):
			}
		}
	}))
	require.NoError(s.t, err)
	require.NoError(s.t, in.Run(s.t.Context()))
}

// undecodable is a column of the undecodable events, in the order in which they came.
func (s *service) undecodable(column string) (found []string) {
	s.t.Helper()
	require.NoError(s.t, s.db.NewRaw("SELECT "+column+" FROM bc_outbox_event WHERE event_type = ? ORDER BY id", inbox.Undecodable).
		Scan(s.t.Context(), &found))
	return found
}

// retry asks for all undecodable events.
func (s *service) retry() {
	s.t.Helper()
	for _, id := range s.undecodable("event_id") {
		err := s.Outbox.Retry(s.t.Context(), outbox.Operation{Actor: "ada", Reason: "it is fixed"}, id)
		if !errors.Is(err, outbox.ErrNotFound) { // it has landed
			require.NoError(s.t, err)
		}
	}
}

// What could not be read lands again when somebody asks for it after a fix: once, in the order in which it came, and is delivered.
func TestWhatCouldNotBeReadLandsAgainAfterAFix(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		broken := inbox.Config{Source: "shop", Map: func(event.Event, inbox.Event) (inbox.Event, error) {
			return inbox.Event{}, errors.New("a fault of ours")
		}}
		nameless := message(3) // in place of an id it has the one of its place, which the undecodable event has taken
		nameless.Attributes["id"] = ""
		large := message(4)
		large.Body = make([]byte, 300<<10)
		s.land(broken, message(1), message(2), nameless, large)
		require.Equal(t, bustest.Report{consumelog.Dead: 4}, s.Drain())

		s.retry()
		s.until(broken, "DEAD", "DEAD", "DEAD", "DEAD")
		require.Contains(t, s.undecodable("last_error")[0], "a fault of ours", "it is DEAD again, with the reason")
		require.Contains(t, s.undecodable("last_error")[3], "only a part of the message was kept")

		s.retry()
		s.until(inbox.Config{Source: "shop"}, "SENT", "SENT", "SENT", "DEAD")
		require.Equal(t, bustest.Report{consumelog.Success: 6, consumelog.Dead: 1}, s.Drain(), "three of them end the undecodable events")
		require.Equal(t, []int{1, 2, 3}, s.numbers(), "in the order in which they came")
		require.Equal(t, "orders/0", s.got[0].Metadata["originPartition"], "as it came")

		s.retry()
		counts := s.land(inbox.Config{Source: "shop"}, message(1), nameless) // a redelivery
		require.Equal(t, inbox.Counts{Landed: 7, Duplicates: 2, Undecodable: 4}, counts)
		s.Drain()
		require.Len(t, s.got, 3, "once")
		var asked int
		require.NoError(t, db.NewRaw("SELECT COUNT(*) FROM bc_audit_log WHERE actor = 'ada'").Scan(t.Context(), &asked))
		require.Equal(t, 4+4+1, asked, "who has asked is in the audit log")
	})
}

// What has landed in another way meanwhile, or does not concern the service any more, ends without a second event.
func TestWhatNeedNotLandAgainDoesNot(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	s.land(inbox.Config{Source: "shop", Map: func(event.Event, inbox.Event) (inbox.Event, error) {
		return inbox.Event{}, errors.New("a fault of ours")
	}}, message(1), message(2))
	s.land(inbox.Config{Source: "shop"}, message(1)) // sent again
	s.retry()
	s.until(inbox.Config{Source: "shop", Map: func(ce event.Event, e inbox.Event) (inbox.Event, error) {
		if ce.ID() == message(2).Attributes["id"] {
			return e, inbox.ErrIgnore
		}
		return e, nil
	}}, "SENT", "SENT")
	require.Equal(t, bustest.Report{consumelog.Success: 2, consumelog.Skipped: 1}, s.Drain())
	require.Equal(t, []int{1}, s.numbers())
}

// Config.ID sees of a message that lands again the time that it had when it came.
func TestWhatLandsAgainHasItsTime(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	cfg := inbox.Config{Source: "shop", ID: func(r relay.Received) string { return "at " + r.Time.UTC().Format(time.RFC3339Nano) }}
	broken := cfg
	broken.Map = func(event.Event, inbox.Event) (inbox.Event, error) {
		return inbox.Event{}, errors.New("a fault of ours")
	}
	nameless := message(1)
	nameless.Attributes["id"], nameless.Time = "", time.Date(2026, 11, 28, 6, 0, 0, 123456789, time.UTC)
	s.land(broken, nameless)
	s.retry()
	s.until(cfg, "SENT")
	s.Drain()
	require.Equal(t, "at 2026-11-28T06:00:00.123456789Z", s.got[0].ID)
	require.Equal(t, 1, s.land(cfg, nameless).Duplicates)
}

// numbers are those of the events that the handler has had.
func (s *service) numbers() (all []int) {
	for _, m := range s.got {
		all = append(all, m.Payload.Number)
	}
	return all
}
