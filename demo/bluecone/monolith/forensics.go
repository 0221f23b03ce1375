package monolith

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/coupon"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/order"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/bluecone/module/wallet"
	"github.com/bluecone-go/bluecone/ops"
)

// publishable are the events that operators may save by hand.
func publishable() []bus.Event {
	return []bus.Event{order.CheckoutLocked{}, order.Paid{}, order.Canceled{}, order.Refunded{}}
}

// operations wires what operators can see and do.
func (a *App) operations(o Options) (err error) {
	a.Ops, err = ops.New(a.DB, a.Outbox, ops.Config{
		Jobs: []ops.Job{a.Publisher, a.Reaper, a.Consistency, a.Retention}, Publishable: publishable(), Checks: a.Consistency,
		Personal: []string{"userId"},
		Sections: []ops.Section{a.orderFacts, a.walletFacts(o), a.pointsFacts(o), a.couponFacts(o)}, Logger: o.Logger,
	})
	return err
}

// find reads an order; ok is false if there is none.
func (a *App) find(ctx context.Context, key string) (o order.Order, ok bool, err error) {
	o, err = a.Orders.Get(ctx, key)
	var no *order.Error
	if errors.As(err, &no) && no.Kind == order.NotFound {
		return o, false, nil
	}
	return o, err == nil, err
}

// orderFacts is what the module order knows.
func (a *App) orderFacts(ctx context.Context, key string) (*ops.Facts, error) {
	o, ok, err := a.find(ctx, key)
	if err != nil || !ok {
		return nil, err
	}
	f := &ops.Facts{Title: in(ctx, "Order", "订单"), Rows: []ops.Fact{
		{Name: in(ctx, "status", "状态"), Value: o.Status},
		{Name: in(ctx, "total", "总额"), Value: money(o.TotalCents)},
		{Name: in(ctx, "of the wallet", "钱包支付"), Value: money(o.WalletCents)},
		{Name: in(ctx, "points", "积分"), Value: strconv.FormatInt(o.Points, 10)},
		{Name: in(ctx, "coupon", "优惠券"), Value: o.CouponID},
		{Name: in(ctx, "to be paid", "待付"), Value: money(o.PayableCents)},
		{Name: in(ctx, "refund", "退款单"), Value: o.RefundID()},
	}}
	if o.RefundID() != "" {
		f.Keys = []string{o.RefundID()}
	}
	return f, nil
}

// settled reports whether every event of the order has come to its end: only then do amounts have
// to add up.
func (a *App) settled(ctx context.Context, o order.Order) (bool, error) {
	for _, aggregate := range [][2]string{{"ORDER", o.OrderID}, {"REFUND", o.RefundID()}} {
		if waiting, dead, err := a.Outbox.OpenEvents(ctx, a.DB, 0, aggregate[0], aggregate[1], ""); err != nil || waiting+dead > 0 {
			return false, err
		}
	}
	return true, nil
}

// kept is what an order takes from an account, by its state.
func kept(o order.Order, amount int64) int64 {
	if o.Status == order.StPaid {
		return amount
	}
	return 0
}

// walletFacts is what the module wallet knows of an order.
func (a *App) walletFacts(opts Options) ops.Section {
	return func(ctx context.Context, key string) (*ops.Facts, error) {
		o, ok, err := a.find(ctx, key)
		if err != nil || !ok {
			return nil, err
		}
		w, err := a.Wallet.Account(ctx, key)
		if err != nil {
			return nil, err
		}
		f := &ops.Facts{Title: in(ctx, "Wallet", "钱包"), Rows: []ops.Fact{
			{Name: in(ctx, "freeze", "冻结"), Value: w.Status},
			{Name: in(ctx, "spent for the order", "本单支出"), Value: money(w.Net)},
		}}
		for _, m := range w.Moves {
			text := in(ctx, "wallet: %s (available %+d, frozen %+d, spent %+d cents)", "钱包：%s（可用 %+d，冻结 %+d，支出 %+d 分）")
			f.Moments = append(f.Moments, moment(m.At, text, m.Key, m.Available, m.Frozen, m.Spent))
		}
		if w.Status == "FROZEN" {
			name := fmt.Sprintf(in(ctx, "%s of user %s", "%s（用户 %s）"), money(w.Cents), w.UserID)
			f.Locks = []ops.Lock{{Name: name, Since: w.Since, TTL: opts.Settings.LockTimeout, Consumer: wallet.Consumer}}
		}
		settled, err := a.settled(ctx, o)
		if settled {
			f.Amounts = []ops.Amount{{Name: in(ctx, "cents spent for the order", "本单支出（分）"), Want: kept(o, o.WalletCents), Have: w.Net}}
		}
		return f, err
	}
}

// pointsFacts is what the module points knows of an order.
func (a *App) pointsFacts(opts Options) ops.Section {
	return func(ctx context.Context, key string) (*ops.Facts, error) {
		o, ok, err := a.find(ctx, key)
		if err != nil || !ok || a.points == nil {
			return nil, err
		}
		p, err := a.points.Account(ctx, key)
		if err != nil {
			return nil, err
		}
		f := &ops.Facts{Title: in(ctx, "Points", "积分"), Rows: []ops.Fact{
			{Name: in(ctx, "freeze", "冻结"), Value: p.Status},
			{Name: in(ctx, "gained by the order", "本单净得"), Value: strconv.FormatInt(p.Net, 10)},
		}}
		for _, m := range p.Moves {
			text := in(ctx, "points: %s (available %+d, frozen %+d)", "积分：%s（可用 %+d，冻结 %+d）")
			f.Moments = append(f.Moments, moment(m.At, text, m.Key, m.Available, m.Frozen))
		}
		if p.Status == "FROZEN" {
			name := fmt.Sprintf(in(ctx, "%d points of user %s", "%d 积分（用户 %s）"), p.Points, p.UserID)
			f.Locks = []ops.Lock{{Name: name, Since: p.Since, TTL: opts.Settings.LockTimeout, Consumer: points.Consumer}}
		}
		settled, err := a.settled(ctx, o)
		if settled {
			f.Amounts = []ops.Amount{{Name: in(ctx, "points gained by the order", "本单净得积分"), Want: kept(o, o.Earned()-o.Points), Have: p.Net}}
		}
		return f, err
	}
}

// couponFacts is what the module coupon knows of an order.
func (a *App) couponFacts(opts Options) ops.Section {
	return func(ctx context.Context, key string) (*ops.Facts, error) {
		o, ok, err := a.find(ctx, key)
		if err != nil || !ok || o.CouponID == "" {
			return nil, err
		}
		u, err := a.Coupons.Use(ctx, key)
		if err != nil {
			return nil, err
		}
		f := &ops.Facts{Title: in(ctx, "Coupon", "优惠券"), Rows: []ops.Fact{
			{Name: in(ctx, "coupon", "优惠券"), Value: o.CouponID},
			{Name: in(ctx, "lock", "锁定"), Value: u.Status},
		}}
		for _, m := range u.Moves {
			f.Moments = append(f.Moments, moment(m.At, in(ctx, "coupon: %s", "优惠券：%s"), m.Key))
		}
		if u.Status == "LOCKED" {
			name := in(ctx, "coupon ", "优惠券 ") + u.CouponID
			f.Locks = []ops.Lock{{Name: name, Since: u.Since, TTL: opts.Settings.LockTimeout, Consumer: coupon.Consumer}}
		}
		settled, err := a.settled(ctx, o)
		if settled && o.Status == order.StPaid && u.Status != "COMMITTED" {
			f.Missing = []string{fmt.Sprintf(in(ctx, "the order is paid, and its coupon %s was not redeemed", "订单已支付，但优惠券 %s 未核销"), o.CouponID)}
		}
		return f, err
	}
}

// in is what the one who asks can read.
func in(ctx context.Context, en, zh string) string {
	if ops.Language(ctx) == "zh" {
		return zh
	}
	return en
}

func moment(at time.Time, says string, args ...any) ops.Moment {
	return ops.Moment{At: at, Kind: "ledger", Says: fmt.Sprintf(says, args...)}
}

func money(cents int64) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }
