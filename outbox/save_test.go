package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"golang.org/x/sync/errgroup"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

var errRollback = errors.New("the business says no")

// Promise 1: an event exists if and only if its transaction committed.
func TestEventExistsOnlyIfItsTransactionCommitted(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.run(outbox.PublisherConfig{})
		err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			require.NoError(t, f.ob.Save(ctx, tx, orderPaid{OrderID: "rolled-back"}))
			return errRollback
		})
		require.ErrorIs(t, err, errRollback)
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			require.NoError(t, f.ob.Save(ctx, tx, orderPaid{OrderID: "kept"}))
			err := tx.RunInTx(ctx, nil, func(ctx context.Context, inner bun.Tx) error { // a savepoint
				require.NoError(t, f.ob.Save(ctx, inner, orderPaid{OrderID: "savepoint-back"}))
				return errRollback
			})
			require.ErrorIs(t, err, errRollback)
			return tx.RunInTx(ctx, nil, func(ctx context.Context, inner bun.Tx) error {
				return f.ob.Save(ctx, inner, orderPaid{OrderID: "savepoint-kept"})
			})
		}))
		f.eventually(func() bool { return f.statuses()[outbox.StatusSent] == 2 }, "both are delivered")
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect WHERE aggregate IN ('kept', 'savepoint-kept')"))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"))
	})
}

// statementsOf counts what one transaction sends between BEGIN and COMMIT.
type statementsOf struct {
	mu  sync.Mutex
	all []string
}

func (s *statementsOf) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context {
	return ctx
}

func (s *statementsOf) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, dialect.Verb(ev.Query))
}

// Promise 7, first half: saving costs one INSERT, however many events. One with a key costs at most two statements more.
func TestSaveIsOneInsert(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		statements := func(events ...bus.Event) []string {
			seen := &statementsOf{}
			require.NoError(t, db.WithQueryHook(seen).RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
				return f.ob.Save(ctx, tx, events...)
			}))
			return seen.all[1 : len(seen.all)-1]
		}
		later := outbox.With(orderPaid{OrderID: "3"}, outbox.DeliverAt(time.Now().Add(time.Hour)))
		first := map[string][]string{"mysql": {"SELECT", "INSERT"}, "pg": {"SHOW", "INSERT"}, "sqlite": {"INSERT"}}[db.Dialect().Name().String()]
		require.Equal(t, first, statements(orderPaid{OrderID: "1"}), "the first Save looks how the database reads texts")
		require.Equal(t, []string{"INSERT"}, statements(orderPaid{OrderID: "1"}))
		require.Equal(t, []string{"INSERT"}, statements(orderPaid{OrderID: "1"}, orderPaid{OrderID: "2"}, later))
		keyed, repeated := []string{"INSERT", "INSERT"}, []string{"INSERT", "INSERT"}
		if db.Dialect().Name().String() == "mysql" {
			keyed, repeated = []string{"SELECT", "INSERT", "INSERT"}, []string{"SELECT"}
		}
		require.Equal(t, keyed, statements(keyedPaid{orderPaid{OrderID: "2"}}))
		require.Equal(t, repeated, statements(keyedPaid{orderPaid{OrderID: "2"}}))
		require.Equal(t, keyed, statements(orderPaid{OrderID: "1"}, keyedPaid{orderPaid{OrderID: "3"}}, later))
		require.Equal(t, map[outbox.Status]int{outbox.StatusNew: 7, outbox.StatusScheduled: 2}, f.statuses())
	})
}

// Promise 7, second half: a claim that is held open, on an empty or a full queue, keeps no
// producer waiting. In REPEATABLE READ its gap locks would.
func TestSaveNeverWaitsForAClaim(t *testing.T) {
	t.Parallel()
	testdb.EachServer(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.counting("Unregistered", bus.ConsumerConfig{})
		for _, n := range []int{0, 3} {
			for i := range n {
				f.save(orderPaid{OrderID: "queued", Seq: i})
			}
			held, release := holdClaims(db)
			result := make(chan error, 1)
			running, stop := context.WithCancel(context.Background())
			go func() { result <- f.publisher(outbox.PublisherConfig{}).Run(running) }()
			f.eventually(func() bool {
				f.ob.Wake() // a beat would not claim where nothing is due
				select {
				case <-held: // the claim has locked its rows and has not committed
					return true
				default:
					return false
				}
			}, "it claims")
			ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
			err := db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error { return f.ob.Save(ctx, tx, orderPaid{OrderID: "during"}) })
			cancel()
			release()
			stop()
			require.NoError(t, err, "with %d events queued", n)
			require.NoError(t, <-result)
		}
	})
}

// claimHolder stops the first claim after its SELECT … FOR UPDATE.
type claimHolder struct {
	once          sync.Once
	held, proceed chan struct{}
}

func holdClaims(db *bun.DB) (held <-chan struct{}, release func()) {
	h := &claimHolder{held: make(chan struct{}), proceed: make(chan struct{})}
	db.AddQueryHook(h) //nolint:staticcheck // the engine's own pool is the point
	return h.held, func() { close(h.proceed) }
}

func (h *claimHolder) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

func (h *claimHolder) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.Contains(ev.Query, "SKIP LOCKED") && strings.Contains(ev.Query, "'NEW'") {
		h.once.Do(func() {
			close(h.held)
			<-h.proceed
		})
	}
}

// A program may have several pools on its database; an event is saved by the transaction of any of them.
func TestSaveTakesTransactionsOfEveryPoolOnItsDatabase(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, dialect)
			f, other := newFixture(t, migrated(t, dsn)), testdb.OpenDSN(t, dsn)
			f.counting("Wallet", bus.ConsumerConfig{})
			f.effects()
			for n := range 5 { // statements are prepared once they have been seen
				f.save(orderPaid{OrderID: "1", Seq: 2 * n}, keyedPaid{orderPaid{OrderID: fmt.Sprint("a", n)}})
				f.once()
				require.NoError(t, other.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
					return f.ob.Save(ctx, tx, orderPaid{OrderID: "1", Seq: 2*n + 1}, keyedPaid{orderPaid{OrderID: fmt.Sprint("b", n)}})
				}))
				f.once()
			}
			require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 20}, f.statuses())
		})
	}
}

func TestKeyedEventIsSavedOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		paid := keyedPaid{orderPaid{OrderID: "7"}}
		var g errgroup.Group
		for range 12 { // the payment callback comes many times at once
			g.Go(func() error { return f.trySave(paid) })
		}
		require.NoError(t, g.Wait())
		f.once()
		f.save(&paid) // and again when everything is done
		f.once()
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE event_id = ?", outbox.EventID(0, "order.paid", "order:7:paid")))
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		f.save(outbox.With(paid, outbox.Tenant(7, 3)))
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM bc_outbox_event"), "another tenant's event is another event")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE tenant_id = 7 AND store_id = 3"))
	})
}

func TestDelayedEventWaitsAndTakesItsPlaceWhenDue(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		f.effects()
		f.counting("Counter", bus.ConsumerConfig{})
		f.save(outbox.With(orderPaid{OrderID: "1", Seq: 1}, outbox.DeliverAt(time.Now().Add(time.Hour))), orderPaid{OrderID: "1", Seq: 2})
		f.once()
		require.Equal(t, 2, f.count("SELECT MAX(seq) FROM effect"), "nothing waits for an event that is not due")
		require.Equal(t, 1, f.count("SELECT COUNT(*) FROM effect"))
		f.hurry()
		f.once()
		require.Equal(t, 2, f.count("SELECT COUNT(*) FROM effect"))
		require.Equal(t, map[outbox.Status]int{outbox.StatusSent: 2}, f.statuses())
	})
}

// odd is an event of which a test chooses every part.
type odd struct {
	typ, kind, id, key string
	payload            any
}

func (e odd) EventType() string            { return e.typ }
func (e odd) Aggregate() (kind, id string) { return e.kind, e.id }
func (e odd) IdempotencyKey() string       { return e.key }
func (e odd) MarshalJSON() ([]byte, error) { return json.Marshal(e.payload) }
func valid() odd                           { return odd{typ: "a.b", kind: "A", id: "1", payload: map[string]int{}} }
func (e odd) with(change func(e *odd)) odd { change(&e); return e }
func nested(depth int) json.RawMessage {
	return json.RawMessage(strings.Repeat("[", depth) + strings.Repeat("]", depth))
}

func TestBadEventsAreRefusedByNameAndLoseNothing(t *testing.T) {
	t.Parallel()
	refused := map[string]struct {
		event bus.Event
		says  string
	}{
		"nil":                   {nil, "event 1 of 1 (nil): the event is nil"},
		"nil pointer":           {(*odd)(nil), "the event is nil"},
		"nil with options":      {outbox.With(nil, outbox.Tenant(1, 1)), "the event is nil"},
		"empty type":            {valid().with(func(e *odd) { e.typ = "" }), "event type is empty: it must be lower-case words"},
		"upper-case type":       {valid().with(func(e *odd) { e.typ = "Order.Paid" }), `event type "Order.Paid" is not a valid name`},
		"long type":             {valid().with(func(e *odd) { e.typ = strings.Repeat("a", 129) }), "has 129 bytes, the limit is 128"},
		"empty aggregate":       {valid().with(func(e *odd) { e.kind = "" }), "aggregate type is empty"},
		"aggregate with space":  {valid().with(func(e *odd) { e.kind = "ORDER " }), `aggregate type "ORDER " is not a valid name`},
		"long aggregate type":   {valid().with(func(e *odd) { e.kind = strings.Repeat("A", 65) }), "has 65 bytes, the limit is 64"},
		"empty id":              {valid().with(func(e *odd) { e.id = "" }), "aggregate id is empty"},
		"long id":               {valid().with(func(e *odd) { e.id = strings.Repeat("€", 43) }), "has 129 bytes, the limit is 128"},
		"NUL in id":             {valid().with(func(e *odd) { e.id = "a\x00b" }), "contains a control character"},
		"bad UTF-8 in id":       {valid().with(func(e *odd) { e.id = "a\xff" }), "is not valid UTF-8"},
		"space at the end":      {valid().with(func(e *odd) { e.id = "1 " }), "begins or ends with white space"},
		"key with line break":   {valid().with(func(e *odd) { e.key = "a\nb" }), "idempotency key"},
		"long key":              {valid().with(func(e *odd) { e.key = strings.Repeat("k", 256) }), "has 256 bytes, the limit is 255"},
		"payload cannot encode": {valid().with(func(e *odd) { e.payload = make(chan int) }), "payload cannot be encoded"},
		"payload too large": {valid().with(func(e *odd) {
			e.payload = strings.Repeat("x", 256<<10)
		}), "the limit is 262144: save a reference instead"},
		"payload too deep":    {valid().with(func(e *odd) { e.payload = nested(31) }), "payload is nested 31 deep, the limit is 30"},
		"payload not UTF-8":   {valid().with(func(e *odd) { e.payload = "a\xffb" }), "payload has a string that is not valid UTF-8"},
		"negative tenant":     {outbox.With(valid(), outbox.Tenant(-1, 0)), "tenant -1, store 0: they must not be negative"},
		"time of another age": {outbox.With(valid(), outbox.DeliverAt(time.Unix(0, 0))), "is not between the years 2000 and 9000"},
		"metadata key":        {outbox.With(valid(), outbox.Meta("", "x")), "metadata key is empty"},
		"metadata not UTF-8":  {outbox.With(valid(), outbox.Meta("k", "\xff")), "metadata k"},
		"metadata too large":  {outbox.With(valid(), outbox.Meta("k", strings.Repeat("x", 20<<10))), "metadata has"},
		"two mistakes":        {valid().with(func(e *odd) { e.kind, e.id = "", "" }), "aggregate id is empty"},
	}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		for name, c := range refused {
			err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
				err := f.ob.Save(ctx, tx, c.event)
				require.ErrorContains(t, err, c.says, name)
				require.ErrorIs(t, err, outbox.ErrInvalidEvent, name)
				require.Error(t, f.ob.Save(ctx, tx, orderPaid{OrderID: "good"}, c.event), "one bad event refuses all of the call")
				return f.ob.Save(ctx, tx, orderPaid{OrderID: "after"}) // the transaction is still usable
			})
			require.NoError(t, err, name)
		}
		require.Equal(t, len(refused), f.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Equal(t, len(refused), f.count("SELECT COUNT(*) FROM bc_outbox_event WHERE aggregate_id = 'after'"))
	})
}

// Whatever is not refused arrives as it was.
func TestOddValuesArriveUnchanged(t *testing.T) {
	t.Parallel()
	values := []string{
		"plain", "ünï çødé 中文 \U0001F600", "\u202eright to left", "a\\b\"c'd`e", "'; DROP TABLE bc_outbox_event; --", "<script>alert(1)</script>",
		"line\nbreak\ttab", "NUL \x00 inside", "\uFFFD itself", "?", "%s", "{0}", strings.Repeat("长", 80_000),
	}
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var mu sync.Mutex
		got := make(map[int]string)
		bus.On(f.bus.Consumer("Reader", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[note]) error {
			mu.Lock()
			defer mu.Unlock()
			got[m.Payload.N] = m.Payload.Text
			return nil
		})
		for i, v := range values {
			f.save(note{N: i, Text: v})
		}
		f.save(note{N: -1, Text: "deep", More: nested(29)})
		f.once()
		for i, v := range values {
			require.Equal(t, v, got[i])
		}
		require.Equal(t, "deep", got[-1])
		require.Equal(t, map[consumelog.Status]int{consumelog.Success: len(values) + 1}, f.deliveries())
	})
}

type note struct {
	N    int             `json:"n"`
	Text string          `json:"text"`
	More json.RawMessage `json:"more,omitempty"`
}

func (note) EventType() string              { return "note.taken" }
func (e note) Aggregate() (kind, id string) { return "NOTE", "n" }

// A handler sees everything the producer said beside the payload, and the row says when and
// by whom it was saved, whatever the clock of this process or its time zone is.
func TestMessageCarriesWhatTheProducerSaid(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		f := newFixture(t, db)
		var got bus.Message[orderPaid]
		bus.On(f.bus.Consumer("Reader", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[orderPaid]) error {
			got = m
			m.RecordKey("wallet:1:commit")
			m.RecordResult("NO_COUPON")
			return nil
		})
		ctx := bus.WithMetadata(t.Context(), bus.Metadata{bus.MetaRequestID: "req-1", bus.MetaUserID: "user-1"})
		require.NoError(t, db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
			return f.ob.Save(ctx, tx, outbox.With(orderPaid{OrderID: "1", Seq: 5}, outbox.Tenant(7, 3), outbox.Meta("source", "import")))
		}))
		f.once()
		require.Equal(t, orderPaid{OrderID: "1", Seq: 5}, got.Payload)
		require.Equal(t, "Reader", got.Consumer)
		require.Equal(t, 1, got.Attempt)
		require.Equal(t, int64(7), got.TenantID)
		require.Equal(t, int64(3), got.StoreID)
		require.Equal(t, "ORDER", got.AggregateType)
		require.Equal(t, "1", got.AggregateID)
		require.Equal(t, "req-1", got.Metadata[bus.MetaRequestID])
		require.Equal(t, "user-1", got.Metadata[bus.MetaUserID])
		require.Equal(t, "import", got.Metadata["source"])
		require.WithinDuration(t, time.Now(), got.CreatedAt, time.Minute)
		require.Equal(t, time.UTC, got.CreatedAt.Location())
		require.Equal(t, "Reader:"+got.ID, got.Key())
		log, err := f.log.ByEvents(t.Context(), got.ID)
		require.NoError(t, err)
		require.Len(t, log, 1)
		require.Equal(t, "wallet:1:commit", log[0].IdempotencyKey)
		require.JSONEq(t, `"NO_COUPON"`, log[0].Result)
	})
}

func TestOutboxConfigNamesEveryMistake(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	_, err := outbox.New(db, outbox.Config{MaxRetryCount: -1, MaxPayload: 1 << 30, Instance: strings.Repeat("i", 65)})
	for _, field := range []string{"MaxRetryCount is -1", "MaxPayload is 1073741824", "Instance", "65 bytes"} {
		require.ErrorContains(t, err, field)
	}
	_, err = outbox.New(nil, outbox.Config{})
	require.ErrorContains(t, err, "db is nil")
	f := newFixture(t, db)
	_, err = outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{
		BatchSize: 5000, Cron: "TZ=0", Poll: -1, Lease: time.Millisecond, DrainTimeout: -1,
	})
	for _, field := range []string{"BatchSize is 5000", "Cron", "Poll is -1ns", "Lease is 1ms", "DrainTimeout is -1ns"} {
		require.ErrorContains(t, err, field)
	}
	_, err = outbox.NewPublisher(nil, nil, outbox.PublisherConfig{})
	require.ErrorContains(t, err, "must not be nil")
}
