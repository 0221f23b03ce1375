package inbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
	"github.com/bluecone-go/bluecone/relay"
	"github.com/bluecone-go/bluecone/relay/inbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

type paid struct {
	ID     string `json:"id"`
	Number int    `json:"number"`
}

func (paid) EventType() string              { return "order.paid" }
func (p paid) Aggregate() (kind, id string) { return "ORDER", p.ID }

// script is a subscriber that does what a test says.
type script func(ctx context.Context, in relay.Sink) error

func (s script) Receive(ctx context.Context, in relay.Sink) error { return s(ctx, in) }

// service is one that has an inbox.
type service struct {
	*bustest.Harness
	t   *testing.T
	db  *bun.DB
	got []bus.Message[paid] // what its handler has had
}

func newService(t *testing.T, db *bun.DB) *service {
	t.Helper()
	s := &service{Harness: bustest.New(t, db, bustest.DeliverOnce()), t: t, db: db}
	bus.On(s.Bus.Consumer("Stamps", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[paid]) error {
		s.got = append(s.got, m)
		return nil
	})
	return s
}

// land lands messages by a run of an inbox.
func (s *service) land(cfg inbox.Config, batch ...relay.Received) inbox.Counts {
	s.t.Helper()
	in, err := inbox.New(s.Outbox, cfg, script(func(ctx context.Context, in relay.Sink) error {
		if err := in.Ready(ctx, ""); err != nil {
			return err
		}
		return in.Land(ctx, batch)
	}))
	require.NoError(s.t, err)
	require.NoError(s.t, in.Run(s.t.Context()))
	counts, err := in.Counts(s.t.Context())
	require.NoError(s.t, err)
	return counts
}

// message is a CloudEvent in binary mode, as a relay sends it.
func message(n int) relay.Received {
	body, _ := json.Marshal(paid{"7", n})
	return relay.Received{
		Topic: "orders", Partition: "orders/0", Offset: fmt.Sprint(n), ContentType: "application/json", Body: body,
		Attributes: map[string]string{
			"specversion": "1.0", "id": fmt.Sprintf("0198c0de-0000-7000-8000-%012d", n), "source": "/bluecone/shop", "type": "order.paid",
			"subject": "ORDER/7", "partitionkey": "3/ORDER/7", "sequence": fmt.Sprint(n), "tenantid": "3", "schemaversion": "1",
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		},
	}
}

func TestWhatLandsIsDeliveredOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		counts := s.land(inbox.Config{Source: "shop"}, message(1), message(2), message(1))
		require.Equal(t, inbox.Counts{Landed: 2, Duplicates: 1}, counts)
		require.Equal(t, bustest.Report{consumelog.Success: 2}, s.Drain())
		counts = s.land(inbox.Config{Source: "shop"}, message(2), message(3)) // a redelivery, after it has been delivered here
		require.Equal(t, inbox.Counts{Landed: 3, Duplicates: 2}, counts)
		require.Equal(t, bustest.Report{consumelog.Success: 3}, s.Drain())
		require.Len(t, s.got, 3)
		for i, m := range s.got {
			require.Equal(t, i+1, m.Payload.Number, "in order")
			require.Equal(t, message(i + 1).Attributes["id"], m.ID)
			require.Equal(t, int64(3), m.TenantID)
			require.Equal(t, "ORDER 7", m.AggregateType+" "+m.AggregateID)
			require.Equal(t, message(1).Attributes["traceparent"], m.Metadata[bus.MetaTraceparent])
			require.Equal(t, []string{"shop", "orders/0", fmt.Sprint(i + 1)},
				[]string{m.Metadata["originSource"], m.Metadata["originPartition"], m.Metadata["originOffset"]})
		}
	})
}

// bad are messages that cannot be read, by what is said about them.
func bad() map[string]relay.Received {
	change := func(fn func(r *relay.Received)) relay.Received {
		r := message(0)
		fn(&r)
		return r
	}
	headers := func(n, size int) map[string]string {
		all := make(map[string]string)
		for i := range n {
			all[fmt.Sprint("x", i)] = strings.Repeat("y", size)
		}
		return all
	}
	return map[string]relay.Received{
		"the payload is not JSON": change(func(r *relay.Received) { r.Body = []byte("{\x00\xff") }),
		"only JSON can be read":   change(func(r *relay.Received) { r.ContentType = "text/plain" }),
		"no attribute type":       {Topic: "orders", Partition: "orders/0", Body: []byte("{}")},
		"no CloudEvent in structured mode": {
			Topic: "orders", Partition: "orders/0", ContentType: "application/cloudevents+json", Body: []byte("[]"),
		},
		"is not a valid name":    change(func(r *relay.Received) { r.Attributes["type"] = "Order Paid!" }),
		"must be a whole number": change(func(r *relay.Received) { r.Attributes["tenantid"] = "seven" }),
		"schema version 0":       change(func(r *relay.Received) { r.Attributes["schemaversion"] = "0" }),
		"the limit is 262144":    change(func(r *relay.Received) { r.Body = []byte(`"` + strings.Repeat("x", 256<<10) + `"`) }),
		"nested 31 deep": change(func(r *relay.Received) {
			r.Body = []byte(strings.Repeat("[", 31) + strings.Repeat("]", 31))
		}),
		"has 210 headers, the limit is 100": change(func(r *relay.Received) { r.Headers = headers(200, 1) }),
		"have 50":                           change(func(r *relay.Received) { r.Headers = headers(1, 50_000) }),
		"not valid UTF-8: it would not be":  change(func(r *relay.Received) { r.Body = []byte("\"\xff\"") }),
		"aggregate id":                      change(func(r *relay.Received) { r.Attributes["subject"] = "ORDER/" + strings.Repeat("x", 200) }),
	}
}

func TestWhatCannotBeReadLandsAsDeadAndStopsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		batch, n := []relay.Received{message(1)}, 0
		for _, r := range bad() {
			n++
			r.Offset = fmt.Sprint("bad", n)
			batch = append(batch, r)
		}
		batch = append(batch, message(2))
		for range 2 { // and again, when it is redelivered
			counts := s.land(inbox.Config{Source: "shop"}, batch...)
			require.Equal(t, n, counts.Undecodable)
			require.Equal(t, n+2, counts.Landed)
			require.Equal(t, bustest.Report{consumelog.Success: 2, consumelog.Dead: n}, s.Drain())
		}
		var rows []struct{ Status, LastError, Payload string }
		require.NoError(t, db.NewRaw("SELECT status, last_error, event_payload AS payload FROM bc_outbox_event WHERE event_type = ?",
			inbox.Undecodable).Scan(t.Context(), &rows))
		require.Len(t, rows, n)
		said := ""
		for _, row := range rows {
			require.Equal(t, "DEAD", row.Status)
			require.Contains(t, row.Payload, "headers")
			said += row.LastError + "\n"
		}
		for want := range bad() {
			require.Contains(t, said, want)
		}
		require.Contains(t, fmt.Sprint(rows), "bodyBase64", "bytes that are no text are kept, too")
	})
}

func TestForeignMessages(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	foreign := func(source, id, offset string) relay.Received {
		r := message(1)
		r.Attributes = map[string]string{"type": "order.paid", "source": source, "id": id}
		r.Offset = offset
		return r
	}
	counts := s.land(inbox.Config{}, foreign("/a", "1", "1"), foreign("/b", "1", "2"), foreign("/a", "1", "3"), // two sources
		foreign("/a", "", "4"), foreign("/a", "", "5"), foreign("/a", "", "4")) // without an id
	require.Equal(t, inbox.Counts{Landed: 4, Duplicates: 2}, counts)
	byBody := inbox.Config{ID: func(r relay.Received) string { return "body:" + string(r.Body[:6]) }}
	require.Equal(t, inbox.Counts{Landed: 5, Duplicates: 3}, s.land(byBody, foreign("/a", "", "6"), foreign("/a", "", "7")))
	require.Equal(t, bustest.Report{consumelog.Success: 5}, s.Drain())
}

func TestMapSaysAsWhatAMessageLands(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	cfg := inbox.Config{Map: func(ce event.Event, e inbox.Event) (inbox.Event, error) {
		switch ce.Type() {
		case "Zahlung!":
			e.Type, e.AggregateType, e.AggregateID = "order.paid", "ORDER", "9"
		case "other":
			return e, inbox.ErrIgnore
		case "bad":
			return e, errors.New("not ours")
		case "panic":
			panic("a secret")
		}
		return e, nil
	}}
	var batch []relay.Received
	for i, kind := range []string{"Zahlung!", "other", "bad", "panic"} {
		r := message(i)
		r.Attributes["type"] = kind
		batch = append(batch, r)
	}
	require.Equal(t, inbox.Counts{Landed: 3, Undecodable: 2}, s.land(cfg, batch...))
	require.Equal(t, inbox.Counts{Landed: 3, Undecodable: 2}, s.land(cfg, batch[1]), "nothing to land is landed")
	require.Equal(t, bustest.Report{consumelog.Success: 1, consumelog.Dead: 2}, s.Drain())
	require.Equal(t, "9", s.got[0].AggregateID)
}

func TestAReplayIsADuplicateUnlessItIsAccepted(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	replay := message(2)
	replay.Headers = map[string]string{relay.ReplayOf: message(1).Attributes["id"]}
	require.Equal(t, inbox.Counts{Landed: 1, Duplicates: 1}, s.land(inbox.Config{}, message(1), replay))
	require.Equal(t, inbox.Counts{Landed: 2, Duplicates: 1}, s.land(inbox.Config{AcceptReplays: true}, replay))
}

func TestWhatHasLandedIsNotSentBack(t *testing.T) {
	t.Parallel()
	db := bustest.NewDB(t)
	s := newService(t, db)
	follow := s.Bus.Consumer("Follow", bus.ConsumerConfig{})
	bus.On(follow, func(ctx context.Context, tx bun.Tx, m bus.Message[paid]) error {
		if m.Payload.Number == 100 {
			return nil
		}
		return s.Outbox.Save(ctx, tx, paid{"8", 100}) // of this service
	})
	var sent []string
	note := publisher(func(m relay.Message) { sent = append(sent, m.AggregateID) })
	require.NoError(t, relay.Register(s.Bus, relay.Config{Types: []string{"order.paid"}}, note))
	s.land(inbox.Config{Source: "shop"}, message(1))
	require.Equal(t, bustest.Report{consumelog.Success: 5, consumelog.Skipped: 1}, s.Drain())
	require.Equal(t, []string{"8"}, sent)
}

type publisher func(relay.Message)

func (p publisher) Publish(_ context.Context, ms []relay.Message) []error {
	for _, m := range ms {
		p(m)
	}
	return make([]error, len(ms))
}

func TestFetchingPausesWhileTooManyEventsAreOpen(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		s := newService(t, db)
		s.land(inbox.Config{}, message(1), message(2))
		ready := make(chan error, 1)
		asked := make(chan struct{})
		in, err := inbox.New(s.Outbox, inbox.Config{Open: 2}, script(func(ctx context.Context, in relay.Sink) error {
			ended, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, in.Ready(ended, ""), context.DeadlineExceeded, "two are open")
			close(asked)
			ready <- in.Ready(ctx, "")
			return nil
		}))
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { _ = in.Run(t.Context()) })
		<-asked
		require.Equal(t, bustest.Report{consumelog.Success: 2}, s.Drain())
		require.NoError(t, <-ready)
		wg.Wait()
	})
}

func TestOneInstanceHasAPartition(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		newService(t, db)              // the tables
		var instances []*outbox.Outbox // made before any of them runs: each adds a hook to the pool
		for range 3 {
			ob, err := outbox.New(db, outbox.Config{})
			require.NoError(t, err)
			instances = append(instances, ob)
		}
		made := func(s script) *inbox.Inbox {
			in, err := inbox.New(instances[0], inbox.Config{Source: "shop"}, s)
			require.NoError(t, err)
			instances = instances[1:]
			return in
		}
		first := made(func(ctx context.Context, in relay.Sink) error {
			require.NoError(t, in.Ready(ctx, "orders/0"))
			second := made(func(ctx context.Context, other relay.Sink) error {
				require.NoError(t, other.Ready(ctx, "orders/1"), "another partition is free")
				ended, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				require.ErrorIs(t, other.Ready(ended, "orders/0"), context.DeadlineExceeded, "this one is not")
				return nil
			})
			require.NoError(t, second.Run(ctx))
			return in.Land(ctx, []relay.Received{message(1)})
		})
		require.NoError(t, first.Run(t.Context()))
		frozen := made(func(ctx context.Context, in relay.Sink) error {
			require.NoError(t, in.Ready(ctx, "orders/0"), "the first has given it back")
			_, err := db.ExecContext(ctx, "UPDATE bc_inbox SET owner = 'somebody' WHERE partition_name = 'orders/0'") // its time was over
			require.NoError(t, err)
			require.Error(t, in.Land(ctx, []relay.Received{message(2)}), "another instance goes on")
			return nil
		})
		require.NoError(t, frozen.Run(t.Context()))
		counts, err := frozen.Counts(t.Context())
		require.NoError(t, err)
		require.Equal(t, inbox.Counts{Landed: 1}, counts)
	})
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, bustest.NewDB(t))
	_, err := inbox.New(nil, inbox.Config{}, nil)
	require.ErrorContains(t, err, "must not be nil")
	_, err = inbox.New(s.Outbox, inbox.Config{Source: "no name", Open: -1}, script(nil))
	require.ErrorContains(t, err, "Config.Source")
	require.ErrorContains(t, err, "Config.Open")
	in, err := inbox.New(s.Outbox, inbox.Config{}, script(func(context.Context, relay.Sink) error { return relay.ErrRefused }))
	require.NoError(t, err)
	require.ErrorIs(t, in.Run(t.Context()), relay.ErrRefused)
}
