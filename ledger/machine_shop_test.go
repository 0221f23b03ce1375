package ledger_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
)

// sale is what the shop has begun.
type sale struct {
	reserved *ledger.Reserved
	isOver   bool // its transaction has ended, or the shop has forgotten it
}

// ordered is an event of the shop's with an identity.
type ordered struct{ paid }

func (o ordered) IdempotencyKey() string { return o.Order }

// shopkeeper is a process of the shop.
type shopkeeper struct {
	*fate
	*ledger.Producer
	db *bun.DB
}

// RoundTrip sends a request of the shop's to an instance that lives, in place of one that dies before it answers.
func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := m.all[m.nearest].RoundTrip(r)
	if err != nil {
		m.restart(m.nearest)
	}
	return res, err
}

// keeper starts a process of the shop.
func (m *machine) keeper() (k shopkeeper, stop func()) {
	k = shopkeeper{fate: &fate{sent: &m.sent}}
	var err error
	k.db, err = testdb.ConnectHooked(m.shopDSN, faultdb.Hook{Before: k.before})
	require.NoError(m.t, err)
	k.Producer, err = ledger.NewProducer(context.Background(), k.db, clientTo(m.t, m), ledger.ProducerConfig{
		CheckURL: shopURL, TTL: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(m.t, err)
	return k, func() { _ = k.db.Close() }
}

// shopReserves lets the shop reserve an event. An instance of the ledger may die on the way; the client calls another one.
func (m *machine) shopReserves(c call, id string) {
	k, stop := m.keeper()
	defer stop()
	m.nearest = c.by
	if c.dies {
		m.all[c.by].arm(c.after)
	}
	m.t.Logf("the shop reserves %s, %+v", id, c)
	began := m.clock()
	reserved, err := k.Reserve(context.Background(), ordered{paid{id}})
	require.NoError(m.t, err)
	d := draft{kind: "order.paid", aggregate: id, id: reserved.EventID, checkURL: shopURL}
	m.reserved[reserved.EventID] = &reservation{
		draft: d, caller: "shop", state: "PREPARED", token: reserved.Token, due: m.since(began).plus(5 * time.Second),
	}
	m.sales[reserved.EventID] = &sale{reserved: reserved}
	m.look(mayBe{})
}

var errDeclined = errors.New("the customer does not want to")

// shopSells runs the transaction of an event, which the shop may not survive, and settles it. Whatever it leaves out the
// check-back fixes.
func (m *machine) shopSells(c call, s *sale, commits, settles bool) {
	k, stop := m.keeper()
	defer stop()
	m.t.Logf("the shop sells %s, %+v: commits %v, settles %v", s.reserved.EventID, c, commits, settles)
	if c.dies {
		k.arm(c.after)
	}
	m.nearest, s.isOver = c.by, true
	ctx := context.Background()
	asked, err := m.shop.NewSelect().Table("bc_barrier").Where("token = ?", s.reserved.Token).Count(ctx)
	require.NoError(m.t, err)
	err = k.db.RunInTx(ctx, nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO sale (id) VALUES (?)", s.reserved.EventID); err != nil {
			return err
		}
		if err := ledger.Prepare(ctx, tx, s.reserved); err != nil || commits {
			return err
		}
		return errDeclined
	})
	r := m.reserved[s.reserved.EventID]
	isSold := m.sold(m.t)[s.reserved.EventID]
	require.False(m.t, isSold && asked > 0, "the ledger was told that this does not commit")
	require.True(m.t, c.dies || isSold == (commits && asked == 0), "%v", err)
	if settles {
		state, err := k.Settle(ctx, s.reserved)
		require.True(m.t, c.dies || err == nil, "%v", err)
		if err == nil {
			require.Equal(m.t, isSold, state == "CONFIRMED")
			m.settle(r, state)
		}
	}
	m.look(mayBe{})
}

// checkBack lets an instance ask the producers of what is due. A till says what it is told.
func (m *machine) checkBack(c call) {
	k, stop := m.keeper()
	defer stop()
	m.t.Logf("check back, %+v", c)
	if c.dies {
		m.all[c.by].arm(c.after)
	}
	said := make(map[string]string)
	client := &http.Client{Transport: toChecks{shop: k, till: func(id string) string {
		m.mu.Lock()
		defer m.mu.Unlock()
		said[id] = m.tillSays[id]
		return said[id]
	}}}
	began := m.clock()
	err := m.all[c.by].service.AskDue(context.Background(), client)
	require.True(m.t, c.dies || err == nil, "%v", err)
	if c.dies {
		m.restart(c.by)
	}
	now := m.since(began)
	may := mayBe{states: make(map[string]string)}
	for id, r := range m.reserved {
		certain, perhaps := r.due.over(now)
		_, asked := said[id]
		if asked {
			require.True(m.t, r.state == "PREPARED" && perhaps, "the producer of %s, which is %s, is asked between %v and %v, due between %v and %v",
				id, r.state, now.from, now.to, r.due.from, r.due.to)
		}
		if r.state != "PREPARED" || !perhaps {
			continue
		}
		if r.due.to = now.to + time.Hour; !c.dies && (asked || certain) { // it is asked again; one that was not due yet soon is
			r.due.from = now.from + time.Second
		}
		want := m.tillSays[id]
		if r.checkURL == shopURL {
			want = map[bool]string{true: "CONFIRMED", false: "CANCELED"}[m.sold(m.t)[id]]
		}
		switch {
		case want != "CONFIRMED" && want != "CANCELED", r.checkURL == "":
		case c.dies || !certain:
			may.states[id] = want
		default:
			m.settle(r, want)
		}
	}
	m.look(may)
}
