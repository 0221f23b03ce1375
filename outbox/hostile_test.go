package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// anything is an event all of which a stranger decides.
type anything struct {
	Type, Kind, ID, Key string `json:"-"`
	Text                string `json:"text"`
	Map                 map[string]any
}

// EventType is that of the consumer for the zero value.
func (a anything) EventType() string {
	if a.Kind == "" && a.ID == "" {
		return "any.thing"
	}
	return a.Type
}

func (a anything) Aggregate() (kind, id string)    { return a.Kind, a.ID }
func (a anything) IdempotencyKey() string          { return a.Key }
func (anything) usual() anything                   { return anything{Type: "any.thing", Kind: "KIND", ID: "id"} }
func (a anything) with(f func(*anything)) anything { a = a.usual(); f(&a); return a }

// Whatever a stranger puts into an event: it is refused by name, and nothing is stored, or it is
// stored and delivered as it is.
func TestHostileEvents(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var mu sync.Mutex
		got := make(map[string]bus.Message[anything]) // by what was saved
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[anything]) error {
			mu.Lock()
			defer mu.Unlock()
			got[m.ID] = m
			return nil
		})
		entries := map[string]func(v string) bus.Event{
			"event type":      func(v string) bus.Event { return anything{}.with(func(a *anything) { a.Type, a.ID = v, "of a type" }) },
			"aggregate type":  func(v string) bus.Event { return anything{}.with(func(a *anything) { a.Kind = v }) },
			"aggregate id":    func(v string) bus.Event { return anything{}.with(func(a *anything) { a.ID = v }) },
			"idempotency key": func(v string) bus.Event { return anything{}.with(func(a *anything) { a.Key = v }) },
			"payload": func(v string) bus.Event {
				return anything{}.with(func(a *anything) { a.Text, a.Map = v, map[string]any{v: v} })
			},
			"metadata key": func(v string) bus.Event {
				return outbox.With(anything{}.usual(), outbox.Meta(v, "x"))
			},
			"metadata x": func(v string) bus.Event { return outbox.With(anything{}.usual(), outbox.Meta("x", v)) },
		}
		var saved []hostileEvent
		var accepted []string
		for entry, event := range entries {
			values := hostile.Values()
			if strings.HasPrefix(entry, "payload") || strings.HasPrefix(entry, "aggregate id") {
				values = append(values, hostile.Huge())
			}
			for _, v := range values {
				e := event(v.Text)
				if err := f.trySave(e); err != nil {
					require.ErrorContains(t, err, strings.Fields(entry)[0], "%s %s", entry, v.Name)
					require.Less(t, len(err.Error()), 1000, "%s %s", entry, v.Name)
					continue
				}
				saved, accepted = append(saved, hostileEvent{e, entry, v.Text}), append(accepted, entry+": "+v.Name)
			}
		}
		var ids []string
		require.NoError(t, db.NewRaw("SELECT event_id FROM bc_outbox_event ORDER BY id").Scan(t.Context(), &ids))
		require.Len(t, ids, len(saved), "nothing else, and all distinct")
		for _, must := range []string{
			"payload: emoji", "payload: NUL", "payload: trailing space", "aggregate id: SQL",
			"aggregate id: right to left", "idempotency key: upper case", "metadata x: line break", "event type: plain",
		} {
			require.Contains(t, accepted, must)
		}
		for _, never := range []string{
			"aggregate id: NUL", "aggregate id: trailing space", "aggregate id: bad UTF-8",
			"aggregate id: 129 bytes", "payload: bad UTF-8", "payload: 17 MB", "event type: upper case", "metadata x: NUL",
		} {
			require.NotContains(t, accepted, never)
		}
		f.once()
		for i, e := range saved {
			compareHostile(t, f, ids[i], e, got)
		}
	})
}

// hostileEvent is an event that was accepted.
type hostileEvent struct {
	bus.Event
	entry, text string
}

// compareHostile compares what was saved with what is stored, and with what the consumer got.
func compareHostile(t *testing.T, f *fixture, id string, e hostileEvent, got map[string]bus.Message[anything]) {
	t.Helper()
	kind, aggregate := e.Aggregate()
	var stored struct{ EventType, AggregateType, AggregateID string }
	require.NoError(t, f.db.NewRaw("SELECT event_type, aggregate_type, aggregate_id FROM bc_outbox_event WHERE event_id = ?",
		id).Scan(t.Context(), &stored.EventType, &stored.AggregateType, &stored.AggregateID))
	require.Equal(t, []string{e.EventType(), kind, aggregate}, []string{stored.EventType, stored.AggregateType, stored.AggregateID})
	if e.EventType() != "any.thing" {
		return // nobody takes it
	}
	m, ok := got[id]
	require.True(t, ok, "%+v", e)
	require.Equal(t, []string{kind, aggregate}, []string{m.AggregateType, m.AggregateID})
	var want []byte
	var err error
	switch e.entry {
	case "metadata key":
		require.Equal(t, "x", m.Metadata[e.text])
	case "metadata x":
		require.Equal(t, e.text, m.Metadata["x"])
	default:
		want, err = json.Marshal(e.Event)
		require.NoError(t, err)
	}
	if want == nil {
		return
	}
	have, err := json.Marshal(m.Payload)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have))
	found, err := f.ob.Events(t.Context(), outbox.Filter{AggregateType: kind, AggregateID: aggregate})
	require.NoError(t, err)
	require.NotEmpty(t, found)
}

// JSON may be nested 30 deep: MariaDB would take no more than 31.
func TestHostileDepth(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for depth, says := range map[int]string{28: "", 29: "", 30: "nested 31 deep", 32: "nested 33 deep", 5000: "nested"} {
			err := f.trySave(anything{}.with(func(a *anything) { a.Map = map[string]any{"deep": json.RawMessage(hostile.Deep(depth - 1))} }))
			if says == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, says)
		}
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// What a handler records is stored as it is, or the attempt is DEAD with the reason: it would fail again.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		values := hostile.Values()
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{MaxAttempts: 1}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			m.RecordKey(values[m.Payload.Seq].Text)
			return nil
		})
		bus.On(f.bus.Consumer("B", bus.ConsumerConfig{MaxAttempts: 1}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			m.RecordResult(values[m.Payload.Seq].Text)
			return nil
		})
		for i := range values {
			f.save(orderPaid{OrderID: fmt.Sprint(i), Seq: i})
		}
		f.once()
		for i, v := range values {
			for _, consumer := range []string{"A", "B"} {
				var status, key, result, why string
				err := db.NewRaw("SELECT l.status, COALESCE(l.idempotency_key, ''), COALESCE("+textOf(db, "l.consume_result")+", 'null'), "+
					"COALESCE(l.error_message, '') FROM bc_event_consume_log l JOIN bc_outbox_event e ON e.event_id = l.event_id "+
					"WHERE l.consumer_name = ? AND e.aggregate_id = ?", consumer, fmt.Sprint(i)).Scan(t.Context(), &status, &key, &result, &why)
				require.NoError(t, err, "%s %s", consumer, v.Name)
				switch {
				case status == "DEAD":
					require.Contains(t, why, map[string]string{"A": "idempotency key", "B": "result"}[consumer], v.Name)
				case consumer == "A":
					require.Equal(t, v.Text, key, v.Name)
				default:
					var back string
					require.NoError(t, json.Unmarshal([]byte(result), &back))
					require.Equal(t, v.Text, back, v.Name)
				}
				if v.Name == "plain" || v.Name == "emoji" {
					require.Equal(t, "SUCCESS", status, "%s: %s", v.Name, why)
				}
			}
		}
	})
}

func textOf(db *bun.DB, column string) string {
	if db.Dialect().Name().String() == "pg" {
		return column + "::text"
	}
	return column
}

// Names of consumers are refused before anything runs.
func TestHostileConsumerNames(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	f := newFixture(t, db)
	for _, v := range append(hostile.Values(), hostile.Huge()) {
		b := bus.New(db, bus.Config{Logger: logger()})
		b.Consumer(v.Text, bus.ConsumerConfig{})
		_, err := outbox.NewPublisher(f.ob, b, outbox.PublisherConfig{})
		if regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`).MatchString(v.Text) {
			require.ErrorContains(t, err, "has no handler", v.Name)
			continue
		}
		require.ErrorContains(t, err, "bus.Consumer: name", v.Name)
		require.Less(t, len(err.Error()), 1000, v.Name)
	}
}

// What an operator says of himself goes into the audit log as it is, or the operation is refused.
func TestHostileOperators(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.counting("A", bus.ConsumerConfig{})
		f.once()
		for _, v := range append(hostile.Values(), hostile.Huge()) {
			for field, op := range map[string]outbox.Operation{"actor": {Actor: v.Text, Reason: "why"}, "reason": {Actor: "who", Reason: v.Text}} {
				before := f.count("SELECT COUNT(*) FROM bc_audit_log")
				if err := f.ob.Pause(t.Context(), op, "A", 0); err != nil {
					require.ErrorContains(t, err, "operation: "+field, v.Name)
					require.Less(t, len(err.Error()), 1000, v.Name)
					require.Equal(t, before, f.count("SELECT COUNT(*) FROM bc_audit_log"), v.Name)
					continue
				}
				var actor, reason, by, why string
				require.NoError(t, db.NewRaw("SELECT actor, reason FROM bc_audit_log ORDER BY id DESC LIMIT 1").Scan(t.Context(), &actor, &reason))
				require.NoError(t, db.NewRaw("SELECT paused_by, pause_reason FROM bc_consumer WHERE name = 'A'").Scan(t.Context(), &by, &why))
				require.Equal(t, []string{op.Actor, op.Reason, op.Actor, op.Reason}, []string{actor, reason, by, why}, v.Name)
			}
			if err := f.ob.Resume(t.Context(), outbox.Operation{Actor: "who", Reason: "why"}, v.Text); err != nil {
				require.ErrorContains(t, err, "resume", v.Name)
			}
		}
	})
}

// Numbers of tenants are no strings, and can be bad all the same.
func TestHostileTenants(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for _, n := range []int64{-1, -1 << 63} {
			require.ErrorContains(t, f.trySave(outbox.With(orderPaid{OrderID: "1"}, outbox.Tenant(n, 0))), "tenant")
			require.ErrorContains(t, f.trySave(outbox.With(orderPaid{OrderID: "1"}, outbox.Tenant(0, n))), "store")
		}
		require.Zero(t, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		const most = 1<<63 - 1
		var tenant, store int64
		bus.On(f.bus.Consumer("A", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			tenant, store = m.TenantID, m.StoreID
			return nil
		})
		f.save(outbox.With(orderPaid{OrderID: "1"}, outbox.Tenant(most, most)))
		f.once()
		require.Equal(t, []int64{most, most}, []int64{tenant, store})
	})
}
