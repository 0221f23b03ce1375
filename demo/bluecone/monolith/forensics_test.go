package monolith_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/monolith"
	"github.com/bluecone-go/bluecone/demo/bluecone/settings"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// An order whose payment lost its event: the story says so, the job fixes it, the story tells that
// too, and the amounts of all modules add up.
func TestStoryOfAnOrder(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		ctx := t.Context()
		app, err := monolith.New(ctx, monolith.Options{DB: db, Settings: settings.Default(), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		u, err := app.Orders.CreateUser(ctx, "", order.NewUser{WalletCents: 1000, Points: 100, CouponCents: []int64{50}})
		require.NoError(t, err)
		o, err := app.Orders.Create(ctx, "", order.NewOrder{
			UserID: u.UserID, TotalCents: 1000, WalletCents: 500, Points: 100, CouponID: u.CouponIDs[0],
		})
		require.NoError(t, err)
		_, err = app.Publisher.RunOnce(ctx)
		require.NoError(t, err)
		_, err = app.Orders.Pay(ctx, o.OrderID, "pay-1", true)
		require.NoError(t, err)
		s, err := app.Ops.Trace(ctx, o.OrderID)
		require.NoError(t, err)
		require.Equal(t, ops.RuleMissingEvent, s.Findings[0].Rule)
		require.Equal(t, "The event that the check order.paid demands of "+o.OrderID+" was never saved, so no consumer knows of it.",
			s.Findings[0].Says)
		require.Contains(t, rules(s), ops.RuleAmount, "the wallet has spent nothing")
		require.Len(t, s.Sections, 4)
		_, ran, err := app.Ops.RunJob(ctx, ops.Operation{Actor: "anna", Reason: "INC-1"}, consistency.JobCode)
		require.NoError(t, err)
		require.True(t, ran)
		_, err = app.Publisher.RunOnce(ctx)
		require.NoError(t, err)
		s, err = app.Ops.Trace(ctx, o.OrderID)
		require.NoError(t, err)
		require.Equal(t, []string{ops.RuleHealthy}, rules(s), "%v", s.Findings)
		kinds := make(map[string]int)
		for _, m := range s.Moments {
			kinds[m.Kind]++
		}
		require.Equal(t, 1, kinds[ops.MomentRepaired])
		require.Equal(t, 7, kinds["ledger"], "locked, frozen, committed, redeemed, earned")
		require.Equal(t, []string{"CouponConsumer", "PointsConsumer", "WalletConsumer"}, s.Consumers)
		s, err = app.Ops.Trace(ops.WithLanguage(ctx, "zh"), o.OrderID)
		require.NoError(t, err)
		for _, facts := range s.Sections {
			require.NotRegexp(t, "[A-Za-z]", facts.Title)
			for _, row := range facts.Rows {
				require.NotRegexp(t, "[A-Za-z]", row.Name)
			}
		}
	})
}

func rules(s ops.Story) []string {
	out := make([]string, len(s.Findings))
	for i, f := range s.Findings {
		out[i] = f.Rule
	}
	return out
}
