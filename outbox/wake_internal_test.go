package outbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/engine"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

type parcelSent struct{ Parcel string }

func (parcelSent) EventType() string              { return "parcel.sent" }
func (e parcelSent) Aggregate() (kind, id string) { return "PARCEL", e.Parcel }

// looking is the channel that closes when the looks for commits end, nil if there are none.
func (u *unseen) looking() <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stop == nil {
		return nil
	}
	return u.ended
}

// wait waits for a signal.
func wait(t *testing.T, signal <-chan struct{}) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(testdb.Patience()):
		t.Fatal("it does not end")
	}
}

// The looks for a commit end when the event shows, after two seconds, and with the last publisher. Without a publisher there are
// none. A call beyond the limit is left to the poll.
func TestLooksForACommitEnd(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ob, err := New(db, Config{})
		require.NoError(t, err)
		save := func() *bun.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, ob.Save(t.Context(), tx.Tx, parcelSent{"1"}))
			return &tx
		}
		require.NoError(t, save().Commit())
		require.Nil(t, ob.unseen.looking(), "nobody publishes")

		p := &Publisher{engine: engine.New(engine.Config{})}
		handover := p.engine.Handover()
		ob.here.subscribe(p)
		tx := save()
		ended := ob.unseen.looking()
		require.NotNil(t, ended)
		require.NoError(t, tx.Commit())
		wait(t, handover.Calls())
		wait(t, ended)
		ids, _ := handover.Take()
		require.Len(t, ids, 1)

		began := time.Now()
		tx = save()
		wait(t, ob.unseen.looking())
		require.GreaterOrEqual(t, time.Since(began), lookFor)
		require.NoError(t, tx.Commit())
		ids, _ = handover.Take()
		require.Empty(t, ids, "it is left to the poll")

		for range mostUnseen + 5 {
			ob.unseen.add(time.Now(), []string{"not there"})
		}
		require.LessOrEqual(t, len(ob.unseen.open(t.Context(), time.Now())), mostUnseen)
		ended = ob.unseen.looking()
		ob.unseen.unsubscribe(p)
		wait(t, ended)
		require.Nil(t, ob.unseen.looking())
	})
}
