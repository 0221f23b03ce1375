package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
	"github.com/bluecone-go/bluecone/outbox"
)

// paid is an event of the tests' producer.
type paid struct {
	Order string `json:"order"`
}

func (paid) EventType() string           { return "order.paid" }
func (p paid) Aggregate() (_, id string) { return "ORDER", p.Order }

// client calls an instance.
func (i *instance) client(token string) *ledger.Client {
	i.t.Helper()
	c, err := clientOf(i.url, token)
	require.NoError(i.t, err)
	return c
}

func clientOf(url, token string) (*ledger.Client, error) {
	return ledger.NewClient(ledger.ClientConfig{URL: url, Token: token, HTTP: http.DefaultClient})
}

// shop is a producer with a database of its own, which has none of our tables, and a ledger in another one.
type shop struct {
	*ledger.Producer
	t        *testing.T
	i        *instance
	db       *bun.DB
	dsn, url string
}

func open(t *testing.T, ledgersDB *bun.DB, ttl time.Duration) *shop {
	t.Helper()
	s := &shop{t: t, i: serve(t, ledgersDB, ledger.Config{}), dsn: testdb.DSN(t, testdb.Server(t, ledgersDB))}
	s.db = testdb.OpenDSN(t, s.dsn)
	_, err := s.db.ExecContext(t.Context(), "CREATE TABLE sale (id VARCHAR(64) PRIMARY KEY)")
	require.NoError(t, err)
	check := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r) }))
	t.Cleanup(check.Close)
	s.url = check.URL
	s.Producer, err = ledger.NewProducer(t.Context(), s.db, s.i.client("shop-token"), ledger.ProducerConfig{CheckURL: s.url, TTL: ttl})
	require.NoError(t, err)
	return s
}

// sell is the business of the shop: a sale and its event, by one transaction.
func sell(ctx context.Context, tx outbox.Tx, event *ledger.Reserved, id string) error {
	if _, err := tx.ExecContext(ctx, "INSERT INTO sale (id) VALUES ('"+id+"')"); err != nil {
		return err
	}
	return ledger.Prepare(ctx, tx, event)
}

func (s *shop) reserve(id string) *ledger.Reserved {
	s.t.Helper()
	event, err := s.Reserve(s.t.Context(), outbox.With(paid{id}, outbox.Tenant(7, 0), outbox.Meta("by", "ann")))
	require.NoError(s.t, err)
	return event
}

func (s *shop) settles(event *ledger.Reserved, id, want string) {
	s.t.Helper()
	state, err := s.Settle(s.t.Context(), event)
	require.NoError(s.t, err)
	require.Equal(s.t, want, state)
	s.becomes(event.Token, id, want)
}

// becomes waits until a reservation is in a state, and looks whether the sale is there if it is CONFIRMED, and only then.
func (s *shop) becomes(token, id, want string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return s.i.ok("shop-token", "QueryReservation", `{"reservationToken":"`+token+`"}`)["state"] == want
	}, testdb.Patience(), 100*time.Millisecond, "%s is not %s", id, want)
	var n int
	require.NoError(s.t, s.db.QueryRowContext(s.t.Context(), "SELECT COUNT(*) FROM sale WHERE id = ?", id).Scan(&n))
	require.Equal(s.t, want == "CONFIRMED", n == 1, "the sale of %s", id)
}

var errBroke = errors.New("the business does not want to")

// An event is published if its transaction commits, and not if it rolls back; Settle says the same when it is repeated.
func TestEventFollowsItsTransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		s := open(t, db, time.Hour)
		kept, gone := s.reserve("kept"), s.reserve("gone")
		begin := func(event *ledger.Reserved, id string, end error) error {
			return s.db.RunInTx(t.Context(), &sql.TxOptions{}, func(ctx context.Context, tx bun.Tx) error {
				return errors.Join(sell(ctx, tx, event, id), end)
			})
		}
		require.NoError(t, begin(kept, "kept", nil))
		require.ErrorIs(t, begin(gone, "gone", errBroke), errBroke)
		for range 2 {
			s.settles(kept, "kept", "CONFIRMED")
			s.settles(gone, "gone", "CANCELED")
		}
		require.ErrorIs(t, begin(gone, "gone", nil), ledger.ErrEnded)
		event := s.i.fetch()[0]["event"].(map[string]any) //nolint:forcetypeassert // the answer of the contract
		require.Equal(t, map[string]any{"order": "kept"}, event["payload"])
		require.Equal(t, json.Number("7"), event["tenantId"])
		require.Equal(t, "ann", event["metadata"].(map[string]any)["by"])
		s.tidies(2)
	})
}

// tidies looks that Tidy removes barriers when they are old, and no sooner.
func (s *shop) tidies(want int) {
	s.t.Helper()
	n, err := s.Tidy(s.t.Context())
	require.NoError(s.t, err)
	require.Zero(s.t, n)
	_, err = s.db.ExecContext(s.t.Context(), "UPDATE bc_barrier SET created_at = '2020-01-01 00:00:00.000000'")
	require.NoError(s.t, err)
	n, err = s.Tidy(s.t.Context())
	require.NoError(s.t, err)
	require.Equal(s.t, want, n)
}

// Transactions of database/sql are as good as bun's.
func TestPrepareTakesAnyTransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		s := open(t, db, time.Second)
		event := s.reserve("plain")
		tx, err := s.db.DB.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sell(t.Context(), tx, event, "plain"))
		require.NoError(t, tx.Commit())
		s.becomes(event.Token, "plain", "CONFIRMED") // nobody has called Settle
	})
}

// A producer that is killed leaves nothing half done: the ledger asks, and what the database says counts.
func TestProducerKilledBetweenItsSteps(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		s := open(t, db, time.Second)
		for point, want := range map[string]string{"reserved": "CANCELED", "prepared": "CANCELED", "committed": "CONFIRMED"} {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childPoint+"="+point, childDSN+"="+s.dsn, childLedger+"="+s.i.url, childCheck+"="+s.url)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			token, err := cmd.Output()
			require.ErrorContains(t, err, "killed", "%s: %s", point, stderr.String())
			s.becomes(string(token), point, want)
		}
		event := s.i.fetch()[0]["event"].(map[string]any) //nolint:forcetypeassert // the answer of the contract
		require.Equal(t, map[string]any{"order": "committed"}, event["payload"])
	})
}

// What tells the child process of the test above what to do.
const (
	childPoint  = "BLUECONE_LEDGER_POINT"
	childDSN    = "BLUECONE_LEDGER_DSN"
	childLedger = "BLUECONE_LEDGER_URL"
	childCheck  = "BLUECONE_LEDGER_CHECK"
)

// liveAsProducer is the life of a producer that ends at a point.
func liveAsProducer(ctx context.Context) error {
	point := os.Getenv(childPoint)
	reach := func(p string) {
		if p == point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	db, err := testdb.Connect(os.Getenv(childDSN))
	if err != nil {
		return err
	}
	c, err := clientOf(os.Getenv(childLedger), "shop-token")
	if err != nil {
		return err
	}
	p, err := ledger.NewProducer(ctx, db, c, ledger.ProducerConfig{CheckURL: os.Getenv(childCheck), TTL: time.Second})
	if err != nil {
		return err
	}
	event, err := p.Reserve(ctx, paid{point})
	if err != nil {
		return err
	}
	fmt.Print(event.Token) //nolint:forbidigo // to the parent
	reach("reserved")
	err = db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		err := sell(ctx, tx, event, point)
		reach("prepared")
		return err
	})
	if err != nil {
		return err
	}
	reach("committed")
	_, err = p.Settle(ctx, event)
	return err
}

// ask is the ledger's question.
func (s *shop) ask(event *ledger.Reserved) string {
	s.t.Helper()
	body := `{"reservationToken":"` + event.Token + `","eventId":"` + event.EventID + `"}`
	resp, err := http.Post(s.url, "application/json", bytes.NewReader([]byte(body)))
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.Equal(s.t, http.StatusOK, resp.StatusCode)
	var answer struct{ State string }
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&answer))
	return answer.State
}

// A transaction that is open when the ledger asks, and says only then that it is about the event, cannot commit; one that
// has said so before is waited for, and its end is the answer.
func TestBarrierAgainstALateCommit(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		s := open(t, db, time.Hour) // nobody but the test asks
		late, open := s.reserve("late"), s.reserve("open")
		if testdb.Server(t, db) == "sqlite" { // of which an open transaction has the whole database
			require.Equal(t, "CANCELED", s.ask(late))
		}
		tx, err := s.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		if testdb.Server(t, db) != "sqlite" {
			require.Equal(t, "CANCELED", s.ask(late))
		}
		require.ErrorIs(t, sell(t.Context(), tx, late, "late"), ledger.ErrEnded)
		require.NoError(t, tx.Rollback())
		s.settles(late, "late", "CANCELED")

		tx, err = s.db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sell(t.Context(), tx, open, "open"))
		require.Equal(t, "UNKNOWN", s.ask(open), "nobody knows yet")
		answer := make(chan string, 1)
		go func() { answer <- s.ask(open) }()
		require.NoError(t, tx.Commit())
		require.Equal(t, "CONFIRMED", <-answer)
		s.settles(open, "open", "CONFIRMED")
	})
}

// The client calls every method; what the service refuses has connect's code.
func TestClient(t *testing.T) {
	t.Parallel()
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{})
	ctx, shop, points := t.Context(), i.client("shop-token"), i.client("points-token")
	event, err := ledger.EventOf(ctx, paid{"1"})
	require.NoError(t, err)
	published, err := shop.Publish(ctx, &ledgerv1.PublishRequest{Events: []*ledgerv1.Event{event}})
	require.NoError(t, err)
	id := published.GetEventIds()[0]
	require.Equal(t, event.GetEventId(), id)
	var began *ledgerv1.BeginConsumeResponse
	began, err = points.BeginConsume(ctx, &ledgerv1.BeginConsumeRequest{Consumer: "Other", EventId: id})
	require.NoError(t, err)
	require.Equal(t, "GO", began.GetDecision())
	beat, err := points.Heartbeat(ctx, &ledgerv1.HeartbeatRequest{ConsumeToken: began.GetConsumeToken()})
	require.NoError(t, err)
	require.False(t, beat.GetLeaseUntil().AsTime().Before(began.GetLeaseUntil().AsTime()))
	finished, err := points.FinishConsume(ctx, &ledgerv1.FinishConsumeRequest{ConsumeToken: began.GetConsumeToken(), Outcome: "SUCCESS"})
	require.NoError(t, err)
	require.Equal(t, "SUCCESS", finished.GetState())
	delivery := i.fetch()[0]
	token, _ := delivery["consumeToken"].(string)
	acked, err := points.Ack(ctx, &ledgerv1.AckRequest{Acks: []*ledgerv1.FinishConsumeRequest{{ConsumeToken: token, Outcome: "SUCCESS"}}})
	require.NoError(t, err)
	require.Equal(t, "SUCCESS", acked.GetStates()[0].GetState())
	consumed, err := points.QueryConsumption(ctx, &ledgerv1.QueryConsumptionRequest{EventId: id})
	require.NoError(t, err)
	require.Len(t, consumed.GetConsumers(), 2)
	lag, err := points.QueryLag(ctx, &ledgerv1.QueryLagRequest{Consumer: "PointsConsumer"})
	require.NoError(t, err)
	require.Zero(t, lag.GetPending())
	_, err = shop.QueryLag(ctx, &ledgerv1.QueryLagRequest{Consumer: "PointsConsumer"})
	require.Equal(t, connect.CodePermissionDenied, connect.CodeOf(err))
	_, err = ledger.EventOf(ctx, outbox.With(paid{"1"}, outbox.DeliverAt(time.Now().Add(time.Hour))))
	require.ErrorContains(t, err, "has a time or a store")
}
