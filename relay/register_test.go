package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type paid struct {
	ID     string `json:"id"`
	Number int    `json:"number"`
}

func (paid) EventType() string              { return "order.paid" }
func (p paid) Aggregate() (kind, id string) { return "ORDER", p.ID }

type refunded paid

func (refunded) EventType() string              { return "order.refunded" }
func (refunded) SchemaVersion() int             { return 3 }
func (r refunded) Aggregate() (kind, id string) { return "ORDER", r.ID }

// broker confirms, unless it is told otherwise.
type broker struct {
	mu     sync.Mutex
	calls  [][]relay.Message
	answer func(relay.Message) error
}

func (b *broker) Publish(_ context.Context, ms []relay.Message) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, ms)
	errs := make([]error, len(ms))
	for i, m := range ms {
		if b.answer != nil {
			errs[i] = b.answer(m)
		}
	}
	return errs
}

func (b *broker) messages() (ms []relay.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, call := range b.calls {
		ms = append(ms, call...)
	}
	return ms
}

// shop is a service with a relay.
type shop struct {
	*bustest.Harness
	db *bun.DB
}

func newShop(t *testing.T, cfg relay.Config, b *broker) *shop {
	t.Helper()
	return newShopAt(t, cfg, b)
}

func newShopAt(t *testing.T, cfg relay.Config, b relay.Publisher) *shop {
	t.Helper()
	db := bustest.NewDB(t)
	h := &shop{bustest.New(t, db, bustest.DeliverOnce()), db}
	if cfg.Types == nil {
		cfg.Types = []string{"order.paid", "order.refunded"}
	}
	cfg.Source = "/bluecone/shop"
	require.NoError(t, relay.Register(h.Bus, cfg, b))
	return h
}

func save(t *testing.T, h *shop, events ...bus.Event) {
	t.Helper()
	tx, err := h.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, h.Outbox.Save(t.Context(), tx, events...))
	require.NoError(t, tx.Commit())
}

func TestEventsOfAllTypesAndVersionsShareCallsAndKeepTheirOrder(t *testing.T) {
	t.Parallel()
	b := &broker{}
	h := newShop(t, relay.Config{Destination: func(e bus.Envelope) string { return "to." + e.AggregateID }}, b)
	for n := range 5 {
		save(t, h, paid{"1", n}, refunded{"2", n}, paid{"3", n}, refunded{"1", n})
	}
	require.Equal(t, bustest.Report{consumelog.Success: 20}, h.Drain())
	order := make(map[string][]string)
	for _, call := range b.calls {
		keys := make(map[string]bool)
		for _, m := range call {
			require.False(t, keys[m.Key()], "one event of an aggregate at a time")
			keys[m.Key()] = true
			order[m.Key()] = append(order[m.Key()], m.Type+string(m.Body))
			require.Equal(t, "to."+m.AggregateID, m.Destination)
			if m.Type == "order.refunded" {
				require.Equal(t, "3", m.Attributes["schemaversion"])
			}
		}
	}
	var want []string
	for n := range 5 {
		want = append(want, fmt.Sprintf(`order.paid{"id":"1","number":%d}`, n), fmt.Sprintf(`order.refunded{"id":"1","number":%d}`, n))
	}
	require.Equal(t, want, order["0/ORDER/1"])
	require.Less(t, len(b.calls), 20, "types share calls")
}

func TestEachMessageIsSettledByTheBrokersAnswerToIt(t *testing.T) {
	t.Parallel()
	tries := 0
	b := &broker{answer: func(m relay.Message) error {
		switch m.AggregateID {
		case "large":
			return bus.Permanent(errors.New("too large"))
		case "away":
			if tries++; tries == 1 {
				return bus.Unavailable(errors.New("connection refused"))
			}
		}
		return nil
	}}
	h := newShop(t, relay.Config{}, b)
	save(t, h, paid{"large", 1}, paid{"away", 1}, paid{"fine", 1}, paid{"large", 2})
	require.Equal(t, bustest.Report{consumelog.Success: 2, consumelog.Dead: 1, consumelog.Pending: 1}, h.Drain())
	ids := make(map[string]string)
	for _, m := range b.messages() {
		if m.AggregateID == "away" && ids["away"] != "" {
			require.Equal(t, ids["away"], m.ID, "the same id again: the broker may have it")
		}
		ids[m.AggregateID] = m.ID
	}
	require.Equal(t, 2, tries)
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	h := bustest.New(t, bustest.NewDB(t))
	require.ErrorContains(t, relay.Register(nil, relay.Config{}, &broker{}), "must not be nil")
	require.ErrorContains(t, relay.Register(h.Bus, relay.Config{}, &broker{}), "Types is empty")
	require.ErrorContains(t, relay.Register(h.Bus, relay.Config{Types: []string{"order.*"}, Name: "A"}, &broker{}), "not a valid name")
	require.ErrorContains(t, relay.Register(h.Bus, relay.Config{Types: []string{"x.y", "x.y"}, Name: "B"}, &broker{}), "is there twice")
	require.ErrorContains(t, relay.Register(h.Bus, relay.Config{Types: []string{"x.y"}, Source: "%"}, &broker{}), "no URI reference")
}

func TestAReplayHasAnIDOfItsOwnAndNamesTheOriginal(t *testing.T) {
	t.Parallel()
	b := &broker{}
	h := newShop(t, relay.Config{}, b)
	save(t, h, paid{"1", 1})
	require.Equal(t, bustest.Report{consumelog.Success: 1}, h.Drain())
	first := b.messages()[0]
	op := outbox.Operation{Actor: "me", Reason: "the receiver was restored"}
	require.NoError(t, h.Outbox.Replay(t.Context(), op, first.ID, "Relay"))
	h.Drain()
	again := b.messages()[len(b.messages())-1]
	require.NotEqual(t, first.ID, again.ID)
	require.Equal(t, again.ID, again.Attributes["id"])
	require.Equal(t, first.ID, again.Headers[relay.ReplayOf])
	require.Empty(t, first.Headers)
}
