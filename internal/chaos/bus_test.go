package chaos_test

import (
	"context"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/invariant"
	"github.com/bluecone-go/bluecone/migrations"
	"github.com/bluecone-go/bluecone/outbox"
)

type paid struct {
	Order string `json:"order"`
	Seq   int    `json:"seq"`
}

func (paid) EventType() string              { return "order.paid" }
func (p paid) Aggregate() (kind, id string) { return "ORDER", p.Order }
func (p paid) IdempotencyKey() string       { return p.Order + ":" + strconv.Itoa(p.Seq) }

// Whatever happens to the connections of an instance, what its producers were told is true, unknown
// outcomes are whole or not at all, and every effect happens once and in order.
func TestUnknownOutcomesAreNeverGuessed(t *testing.T) {
	t.Parallel()
	for _, dialect := range testdb.Servers() {
		for _, fault := range []chaos.Fault{
			{Kind: chaos.CutBeforeCommit, Every: 4},
			{Kind: chaos.CutAfterCommit, Every: 4},
			{Kind: chaos.BlackHole},
			{Kind: chaos.Delay, Delay: 3 * time.Millisecond},
			{Kind: chaos.Reset},
		} {
			t.Run(dialect+"/"+fault.Kind.String(), func(t *testing.T) {
				t.Parallel()
				newShop(t, dialect, fault).survives(fault)
			})
		}
	}
}

const (
	sales  = 40
	most   = 200 // more, if no COMMIT of a delivery was hit
	orders = 7
)

// shop is an instance that reaches its database through a proxy, and a way around it.
type shop struct {
	t         *testing.T
	proxy     *chaos.Proxy
	db        *bun.DB // through the proxy
	direct    *bun.DB
	ob        *outbox.Outbox
	readBacks atomic.Int64
	history   invariant.History
	unknown   []string
}

func newShop(t *testing.T, dialect string, fault chaos.Fault) *shop {
	t.Helper()
	dsn := testdb.DSN(t, dialect)
	s := &shop{t: t, direct: testdb.OpenDSN(t, dsn)}
	require.NoError(t, migrations.Up(t.Context(), s.direct))
	id := map[string]string{
		"mysql": "BIGINT AUTO_INCREMENT PRIMARY KEY", "postgres": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	}[testdb.Dialect(dialect)]
	for _, table := range []string{
		"effect (id " + id + ", consumer VARCHAR(128) NOT NULL, event_id VARCHAR(64) NOT NULL, aggregate VARCHAR(128) NOT NULL, seq INT NOT " +
			"NULL)",
		"business (event_id VARCHAR(64) PRIMARY KEY)",
	} {
		_, err := s.direct.ExecContext(t.Context(), "CREATE TABLE "+table)
		require.NoError(t, err)
	}
	var way string
	s.proxy, way = through(t, dialect, dsn)
	sqldb := pool(t, dialect, way)
	sqldb.SetMaxOpenConns(6)
	if s.db = bun.NewDB(sqldb, pgdialect.New()); testdb.Dialect(dialect) == "mysql" {
		s.db = bun.NewDB(sqldb, mysqldialect.New())
	}
	s.db.AddQueryHook(s) //nolint:staticcheck // the engine's own statements are to be seen
	s.run(fault)
	return s
}

// BeforeQuery does nothing.
func (s *shop) BeforeQuery(ctx context.Context, _ *bun.QueryEvent) context.Context { return ctx }

// AfterQuery counts how often an outcome is read back by consumer and event.
func (s *shop) AfterQuery(_ context.Context, ev *bun.QueryEvent) {
	if strings.HasPrefix(ev.Query, "SELECT COUNT(CASE WHEN status = 'SUCCESS'") && strings.Contains(ev.Query, "consumer_name = ") &&
		strings.Contains(ev.Query, "event_id IN (") {
		s.readBacks.Add(1)
	}
}

// run starts the engine: two consumers that note what they do through their transaction. Only where the network falls
// silent are limits of time what ends a wait; elsewhere a slow machine must not meet them.
func (s *shop) run(fault chaos.Fault) {
	lease, timeout := 30*time.Second, testdb.Patience()
	if fault.Kind == chaos.BlackHole {
		lease, timeout = 2*time.Second, 5*time.Second
	}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	s.ob, err = outbox.New(s.db, outbox.Config{Logger: quiet})
	require.NoError(s.t, err)
	b := bus.New(s.db, bus.Config{Logger: quiet})
	for _, name := range []string{"Wallet", "Points"} {
		bus.On(b.Consumer(name, bus.ConsumerConfig{Timeout: timeout}), func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO effect (consumer, event_id, aggregate, seq) VALUES (?, ?, ?, ?)", m.Consumer, m.ID,
				m.AggregateID, m.Payload.Seq)
			return err
		})
	}
	p, err := outbox.NewPublisher(s.ob, b, outbox.PublisherConfig{Lease: lease, Poll: 20 * time.Millisecond, DrainTimeout: 10 * time.Second})
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Run(ctx); err != nil {
			s.t.Errorf("publisher: %v", err)
		}
	})
	s.t.Cleanup(func() { cancel(); wg.Wait() })
}

// sell makes a business row and its event in one transaction, and notes what its client was told. It returns what went
// wrong before COMMIT.
func (s *shop) sell(db *bun.DB, n int) error {
	e := paid{Order: strconv.Itoa(n % orders), Seq: n}
	id := outbox.EventID(0, e.EventType(), e.IdempotencyKey())
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*silence)
	defer cancel()
	tx, err := db.BeginTx(ctx, nil)
	if err == nil {
		if _, err = tx.ExecContext(ctx, "INSERT INTO business (event_id) VALUES (?)", id); err == nil {
			err = s.ob.Save(ctx, tx, e)
		}
		if err != nil {
			_ = tx.Rollback()
		}
	}
	if err != nil {
		s.history.Failed = append(s.history.Failed, id)
		return err
	}
	if tx.Commit() == nil {
		s.history.Committed = append(s.history.Committed, id)
	} else {
		s.unknown = append(s.unknown, id)
	}
	return nil
}

func (s *shop) survives(fault chaos.Fault) {
	sold := 0
	for ; sold < sales; sold++ {
		switch {
		case sold%20 == 5:
			s.proxy.Break(fault)
		case sold%20 == 6 && fault.Every == 0, sold%20 == 15:
			s.proxy.Repair()
		}
		_ = s.sell(s.db, sold) // the history has it
	}
	// Chance may have cut the producers' COMMITs alone: now there are only the engine's.
	s.proxy.Break(fault)
	for ; fault.Every > 1 && s.readBacks.Load() == 0 && sold < sales+most; sold++ {
		require.NoError(s.t, s.sell(s.direct, sold))
		s.delivered()
	}
	s.proxy.Repair()
	s.delivered()

	s.history.Unknown = make(map[string]bool)
	committed := 0
	for _, id := range s.unknown {
		there := s.count("SELECT COUNT(*) FROM business WHERE event_id = ?", id) == 1
		if s.history.Unknown[id] = there; there {
			committed++
		}
	}
	found, err := invariant.Check(s.t.Context(), s.direct, invariant.Config{
		Quiet: true, Effects: invariant.Effects{Table: "effect"}, History: s.history,
	})
	require.NoError(s.t, err)
	require.Empty(s.t, found)
	require.Equal(s.t, s.count("SELECT COUNT(*) FROM business"), s.count("SELECT COUNT(*) FROM bc_outbox_event"))
	require.Equal(s.t, sold, len(s.history.Committed)+len(s.history.Failed)+len(s.unknown))
	s.t.Logf("%d committed, %d failed, %d unknown of which %d committed; %d outcomes read back, %d connections cut",
		len(s.history.Committed), len(s.history.Failed), len(s.unknown), committed, s.readBacks.Load(), s.proxy.Cut())
	switch fault.Kind {
	case chaos.CutBeforeCommit:
		require.NotEmpty(s.t, s.unknown)
		require.Zero(s.t, committed, "it did not happen")
		require.Positive(s.t, s.readBacks.Load())
	case chaos.CutAfterCommit:
		require.NotEmpty(s.t, s.unknown)
		require.Equal(s.t, len(s.unknown), committed, "it has happened")
		require.Positive(s.t, s.readBacks.Load())
		var attempts []string
		err := s.direct.NewRaw("SELECT CONCAT(consumer_name, ' ', outcome, ' ', error_message) FROM bc_delivery_attempt").
			Scan(s.t.Context(), &attempts)
		require.NoError(s.t, err)
		require.Empty(s.t, attempts, "the network's trouble is no attempt")
	case chaos.Delay:
		require.Len(s.t, s.history.Committed, sold)
	default:
		require.Positive(s.t, s.proxy.Cut())
	}
}

// delivered waits until everything is.
func (s *shop) delivered() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return s.count("SELECT COUNT(*) FROM bc_outbox_event WHERE status <> 'SENT'") == 0
	}, 2*time.Minute, 5*time.Millisecond, "everything is delivered")
}

func (s *shop) count(query string, args ...any) (n int) {
	s.t.Helper()
	err := s.direct.QueryRowContext(context.Background(), query, args...).Scan(&n)
	require.NoError(s.t, err)
	return n
}
