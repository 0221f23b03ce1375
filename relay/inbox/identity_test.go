package inbox_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

// What has landed is known while its key is kept, long after retention has removed its event, and forgotten after that.
func TestWhatHasLandedIsKnownWhenItsEventHasGone(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		retention, err := outbox.NewRetention(s.Outbox, outbox.RetentionConfig{})
		require.NoError(t, err)
		after := func(days int) map[string]int64 {
			s.Advance(time.Duration(days) * 24 * time.Hour)
			counts, err := retention.RunNow(t.Context())
			require.NoError(t, err)
			return counts
		}
		own := message(2)
		own.Attributes["id"] = "2f1b7d3e-5d3c-4c43-9c5e-0d3a3a5a7a10" // of a sender that has UUIDs of version 4
		for round := 1; round <= 2; round++ {
			counts := s.land(inbox.Config{Source: "shop"}, message(1), own)
			require.Equal(t, 2*round, counts.Landed)
			s.Drain()
			require.EqualValues(t, 2, after(8)["removed"])
			require.Zero(t, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_outbox_event"))
			require.Zero(t, after(88)["keys"])
			require.Equal(t, inbox.Counts{Landed: 2 * round, Duplicates: 2 * round}, s.land(inbox.Config{Source: "shop"}, message(1), own))
			s.Drain()
			require.Len(t, s.got, 2*round)
			require.EqualValues(t, 2, after(3)["keys"])
			require.Zero(t, testdb.Count(t, db, "SELECT COUNT(*) FROM bc_event_key"))
		}
	})
}

// withoutID are messages that an inbox has to name itself: one without an id, one that cannot be read, and one of a broker that has no
// offsets.
func withoutID() []relay.Received {
	nameless, unreadable, placeless := message(1), message(2), message(3)
	nameless.Attributes["id"] = ""
	unreadable.Body, placeless.Body, placeless.Offset = []byte("no JSON"), []byte("no JSON"), ""
	return []relay.Received{nameless, unreadable, placeless}
}

// Two brokers may have topics of one name, and one service an inbox for each.
func TestInboxesTakeNoMessagesForThoseOfOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		for _, source := range []string{"east", "west"} {
			cfg := inbox.Config{Source: source}
			require.Equal(t, inbox.Counts{Landed: 3, Undecodable: 2}, s.land(cfg, withoutID()...), source)
			require.Equal(t, inbox.Counts{Landed: 3, Undecodable: 2, Duplicates: 3}, s.land(cfg, withoutID()...), "%s again", source)
		}
		require.Equal(t, bustest.Report{consumelog.Success: 2, consumelog.Dead: 4}, s.Drain())
	})
}

// A topic that is deleted and made anew begins again with its first place.
func TestMessagesOfATopicThatIsMadeAnewAreOthers(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		at := time.Date(2026, 11, 28, 6, 0, 0, 0, time.UTC)
		sent := func(at time.Time) []relay.Received {
			batch := withoutID()[:2]
			batch[0].Time, batch[1].Time = at, at
			return batch
		}
		require.Equal(t, inbox.Counts{Landed: 2, Undecodable: 1}, s.land(inbox.Config{}, sent(at)...))
		redelivered := s.land(inbox.Config{}, sent(at.In(time.FixedZone("east", 3600)))...)
		require.Equal(t, inbox.Counts{Landed: 2, Undecodable: 1, Duplicates: 2}, redelivered)
		require.Equal(t, inbox.Counts{Landed: 4, Undecodable: 2, Duplicates: 2}, s.land(inbox.Config{}, sent(at.Add(time.Hour))...))
		require.Equal(t, bustest.Report{consumelog.Success: 2, consumelog.Dead: 2}, s.Drain())
	})
}
