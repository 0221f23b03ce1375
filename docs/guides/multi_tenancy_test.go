package guides_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// PointsGiven follows from OrderPaid.
type PointsGiven struct {
	OrderID string
	Points  int
}

func (PointsGiven) EventType() string              { return "points.given" }
func (e PointsGiven) Aggregate() (kind, id string) { return "ORDER", e.OrderID }

type tenantKey struct{}

// forTenant is what your HTTP middleware does after it has recognised the caller.
func forTenant(ctx context.Context, id int64) context.Context {
	return context.WithValue(ctx, tenantKey{}, id)
}

func saveForTenant(ctx context.Context, ob *outbox.Outbox, tx bun.Tx, events ...bus.Event) error {
	tenant, ok := ctx.Value(tenantKey{}).(int64)
	if !ok {
		return errors.New("this context has no tenant")
	}
	owned := make([]bus.Event, len(events))
	for i, e := range events {
		owned[i] = outbox.With(e, outbox.Tenant(tenant, 0))
	}
	return ob.Save(ctx, tx, owned...)
}

func registerTenantPoints(b *bus.Bus, ob *outbox.Outbox) {
	c := b.Consumer("Points", bus.ConsumerConfig{})
	bus.On(c, func(ctx context.Context, tx bun.Tx, m bus.Message[OrderPaid]) error {
		points := m.Payload.Cents / 100
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET points = points + ? WHERE tenant_id = ?", points, m.TenantID)
		if err != nil {
			return err
		}
		return ob.Save(ctx, tx, PointsGiven{OrderID: m.Payload.OrderID, Points: points}) // belongs to m.TenantID
	})
}

func tenantHarness(t *testing.T) (*bun.DB, *bustest.Harness) {
	db := bustest.NewDB(t)
	exec(t, db, "CREATE TABLE accounts (tenant_id INT PRIMARY KEY, points INT NOT NULL)", "INSERT INTO accounts VALUES (1, 0), (2, 0)")
	return db, bustest.New(t, db)
}

func tenantPays(t *testing.T, db *bun.DB, ob *outbox.Outbox, tenant int64, events ...bus.Event) {
	require.NoError(t, db.RunInTx(forTenant(t.Context(), tenant), nil, func(ctx context.Context, tx bun.Tx) error {
		return saveForTenant(ctx, ob, tx, events...)
	}))
}

// Two tenants have an order 7 each: keys, accounts and follow-up events are apart.
func TestTenantsAreApart(t *testing.T) {
	t.Parallel()
	db, h := tenantHarness(t)
	registerTenantPoints(h.Bus, h.Outbox)
	h.Bus.Unconsumed("points.given")
	tenantPays(t, db, h.Outbox, 1, OrderPaid{OrderID: "7", Cents: 4200})
	tenantPays(t, db, h.Outbox, 2, OrderPaid{OrderID: "7", Cents: 100})
	h.Drain()
	require.Equal(t, 42, number(t, db, "SELECT points FROM accounts WHERE tenant_id = 1"))
	require.Equal(t, 1, number(t, db, "SELECT points FROM accounts WHERE tenant_id = 2"))
	given := bustest.AllSaved[PointsGiven](h)
	require.Len(t, given, 2)
	require.Equal(t, []int64{1, 2}, []int64{given[0].TenantID, given[1].TenantID})
	err := saveForTenant(t.Context(), h.Outbox, bun.Tx{}, OrderPaid{})
	require.ErrorContains(t, err, "no tenant")
}

// A DEAD event of one tenant holds up nothing of another, although their orders have the same number.
func TestADeadEventOfATenantHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	db, h := tenantHarness(t)
	bus.On(h.Bus.Consumer("Points", bus.ConsumerConfig{}), func(_ context.Context, _ bun.Tx, m bus.Message[OrderPaid]) error {
		if m.TenantID == 1 {
			return bus.Permanent(errors.New("refused"))
		}
		return nil
	})
	tenantPays(t, db, h.Outbox, 1, OrderPaid{OrderID: "7", Cents: 4200})
	tenantPays(t, db, h.Outbox, 2, OrderPaid{OrderID: "7", Cents: 100})
	require.Equal(t, bustest.Report{consumelog.Dead: 1, consumelog.Success: 1}, h.Drain())
}

// tenantConsole lets anna see the events of tenant 1 only.
func tenantConsole(db *bun.DB, ob *outbox.Outbox, password string) (http.Handler, error) {
	o, err := ops.New(db, ob, ops.Config{})
	if err != nil {
		return nil, err
	}
	check, err := console.Users(console.User{Name: "anna", Password: password, May: console.Operator(), Tenants: []int64{1}})
	if err != nil {
		return nil, err
	}
	return console.New(o, console.Config{Authorize: console.BasicAuth(check)})
}

func TestConsoleOfOneTenant(t *testing.T) {
	t.Parallel()
	db, h := tenantHarness(t)
	tenantPays(t, db, h.Outbox, 1, OrderPaid{OrderID: "7"})
	tenantPays(t, db, h.Outbox, 2, OrderPaid{OrderID: "8"})
	pages, err := tenantConsole(db, h.Outbox, "a long password")
	require.NoError(t, err)
	for _, saved := range bustest.AllSaved[OrderPaid](h) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/event?id="+saved.ID, nil)
		request.SetBasicAuth("anna", "a long password")
		response := httptest.NewRecorder()
		pages.ServeHTTP(response, request)
		require.Equal(t, map[int64]int{1: http.StatusOK, 2: http.StatusNotFound}[saved.TenantID], response.Code)
	}
}
