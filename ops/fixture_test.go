package ops_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// paid is the event of most tests. Its note says how the consumers take it.
type paid struct {
	OrderID string `json:"orderId"`
	Cents   int64  `json:"cents"`
	Phone   string `json:"phone" bus:"pii"`
	Note    string `json:"note"`
}

func (paid) EventType() string              { return "order.paid" }
func (e paid) Aggregate() (kind, id string) { return "ORDER", e.OrderID }
func (e paid) IdempotencyKey() string       { return "order:" + e.OrderID + ":paid" }

// noted has no key.
type noted struct {
	OrderID string `json:"orderId"`
	Note    string `json:"note"`
}

func (noted) EventType() string              { return "order.noted" }
func (e noted) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

var op = ops.Operation{Actor: "anna", Reason: "a test"}

// fixture is a deployment of one process.
type fixture struct {
	t   *testing.T
	db  *bun.DB
	ob  *outbox.Outbox
	bus *bus.Bus
	ops *ops.Ops

	mu  sync.Mutex
	ran []string // "consumer order", with a mark of a replay
	fix bool     // handlers succeed from now on
}

func newFixture(t *testing.T, db *bun.DB, cfg ops.Config) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db}
	logger := slog.New(slog.DiscardHandler)
	var err error
	f.ob, err = outbox.New(db, outbox.Config{Logger: logger, Instance: "test-1"})
	require.NoError(t, err)
	f.bus = bus.New(db, bus.Config{Logger: logger})
	cfg.Logger = logger
	cfg.Publishable = []bus.Event{paid{}, noted{}}
	f.ops, err = ops.New(db, f.ob, cfg)
	require.NoError(t, err)
	return f
}

// consumers registers one that always succeeds, and one that does what the note says.
func (f *fixture) consumers() *fixture {
	// one worker, so that replays run in the order of their events
	steady := f.bus.Consumer("Steady", bus.ConsumerConfig{Replayable: true, Concurrency: 1})
	bus.On(steady, func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
		m.RecordKey("steady:" + m.Payload.OrderID)
		m.RecordResult(map[string]any{"cents": m.Payload.Cents, "phone": m.Payload.Phone})
		return f.note(m.Consumer, m.Payload.OrderID, m.Replay)
	})
	bus.On(steady, func(_ context.Context, _ bun.Tx, m bus.Message[noted]) error {
		return f.note(m.Consumer, m.Payload.OrderID, m.Replay)
	})
	// One batch at a time: the tests look at the order in which deliveries were recorded.
	bus.On(f.bus.Consumer("Moody", bus.ConsumerConfig{Concurrency: 1}), func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
		if !f.fixed() {
			switch m.Payload.Note {
			case "die":
				return bus.Permanent(errors.New("order " + m.Payload.OrderID + " is cursed"))
			case "fail":
				return errors.New("order " + m.Payload.OrderID + " is not ready")
			}
		}
		return f.note(m.Consumer, m.Payload.OrderID, m.Replay)
	})
	return f
}

func (f *fixture) note(consumer, order string, replay bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if replay {
		order += " again"
	}
	f.ran = append(f.ran, consumer+" "+order)
	return nil
}

func (f *fixture) runs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string{}, f.ran...)
}

func (f *fixture) fixed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fix
}

func (f *fixture) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fix = true
}

func (f *fixture) save(events ...bus.Event) {
	f.t.Helper()
	require.NoError(f.t, f.db.RunInTx(f.t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return f.ob.Save(ctx, tx, events...) }))
}

// once delivers what is due.
func (f *fixture) once() {
	f.t.Helper()
	p, err := outbox.NewPublisher(f.ob, f.bus, outbox.PublisherConfig{})
	require.NoError(f.t, err)
	_, err = p.RunOnce(f.t.Context())
	require.NoError(f.t, err)
}

func (f *fixture) exec(query string, args ...any) {
	f.t.Helper()
	_, err := f.db.ExecContext(f.t.Context(), query, args...)
	require.NoError(f.t, err, query)
}

// reserve writes the reservation of an event by a producer, whose time to live is over after a while. It was asked once.
func (f *fixture) reserve(eventID, producer, state string, ttl time.Duration) {
	f.t.Helper()
	next := "NULL"
	if state == "PREPARED" {
		next = f.now(ttl)
	}
	f.exec("INSERT INTO bc_reservation (token, event_id, caller, event_type, state, event, check_url, checks, last_error, expires_at, "+
		"next_check_at, created_at, updated_at) VALUES (?, ?, ?, 'order.paid', ?, '{}', 'http://127.0.0.1:1/check?key=hidden', 1, 'gone', "+
		f.now(ttl)+", "+next+", "+f.now(-time.Minute)+", "+f.now(-time.Second)+")", "token-of-"+eventID, eventID, producer, state)
}

func (f *fixture) count(query string, args ...any) int {
	f.t.Helper()
	var n int
	require.NoError(f.t, f.db.QueryRowContext(f.t.Context(), query, args...).Scan(&n), query)
	return n
}

// event reads the event of an order's payment.
func (f *fixture) event(order string) ops.Event {
	f.t.Helper()
	e, err := f.ops.Event(f.t.Context(), paidID(order))
	require.NoError(f.t, err)
	return e
}

func paidID(order string) string {
	return outbox.EventID(0, "order.paid", paid{OrderID: order}.IdempotencyKey())
}

func delivery(e ops.Event, consumer string) ops.Delivery {
	for _, d := range e.Deliveries {
		if d.Consumer == consumer {
			return d
		}
	}
	return ops.Delivery{}
}

// now is the database's clock moved by d, as the tests write it.
func (f *fixture) now(d time.Duration) string {
	seconds := int(d.Seconds())
	switch f.db.Dialect().Name().String() {
	case "mysql":
		return "(UTC_TIMESTAMP(6) + INTERVAL " + itoa(seconds) + " SECOND)"
	case "pg":
		return "(statement_timestamp() + INTERVAL '" + itoa(seconds) + " seconds')"
	}
	return "(strftime('%Y-%m-%d %H:%M:%f', 'now', '" + itoa(seconds) + " seconds') || '000')"
}
