package order

import (
	"context"
	"fmt"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/outbox"
)

// PaidCheck says that a paid order implies order.paid, whatever became of the order since.
func (s *Service) PaidCheck() consistency.Check[Order] {
	return s.check("order.paid", "paid_at", func(o Order) bus.Event { return o.paid() })
}

// RefundCheck says that a refunded order implies order.refunded.
func (s *Service) RefundCheck() consistency.Check[Order] {
	return s.check("order.refunded", "refunded_at", func(o Order) bus.Event { return o.refunded() })
}

// check finds orders by the time of a change whose event is missing, and saves the full
// event, built from the order itself, under the id it would have had.
func (s *Service) check(name, column string, event func(Order) bus.Event) consistency.Check[Order] {
	id := func(o Order) string {
		e := event(o)
		return outbox.EventID(0, e.EventType(), e.(bus.Keyed).IdempotencyKey())
	}
	return consistency.Check[Order]{
		Name: name,
		Key:  func(o Order) string { return o.OrderID },
		Find: func(ctx context.Context, db bun.IDB, q consistency.Query) ([]Order, error) {
			return s.changed(ctx, db, column, q)
		},
		Missing: func(ctx context.Context, db bun.IDB, facts []Order) ([]Order, error) {
			ids, byID := make([]string, len(facts)), make(map[string]Order, len(facts))
			for i, o := range facts {
				ids[i] = id(o)
				byID[ids[i]] = o
			}
			missing, err := s.ob.Missing(ctx, db, ids)
			out := make([]Order, len(missing))
			for i, m := range missing {
				out[i] = byID[m]
			}
			return out, err
		},
		Of: func(ctx context.Context, db bun.IDB, key string) ([]Order, error) {
			return s.list(ctx, db, "id = ? AND "+column+" IS NOT NULL", key)
		},
		Repair: func(ctx context.Context, tx bun.Tx, fact Order) (bool, error) {
			o, err := s.read(ctx, tx, fact.OrderID, s.d.ForUpdate)
			if err != nil {
				return false, err
			}
			if missing, err := s.ob.Missing(ctx, tx, []string{id(o)}); err != nil || len(missing) == 0 {
				return false, err
			}
			return true, s.ob.Save(ctx, tx,
				outbox.With(event(o), outbox.Meta("source", "consistency_repair"), outbox.Meta(bus.MetaUserID, o.UserID)))
		},
	}
}

func (s *Service) changed(ctx context.Context, db bun.IDB, column string, q consistency.Query) ([]Order, error) {
	return s.list(ctx, db, "?", q.Page(column, "demo_order.id"))
}

func (s *Service) list(ctx context.Context, db bun.IDB, where string, args ...any) ([]Order, error) {
	rows, err := db.QueryContext(ctx, "SELECT "+columns+" FROM demo_order WHERE "+where, args...)
	if err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	defer rows.Close()
	var out []Order
	for rows.Next() {
		var o Order
		if err := rows.Scan(o.fields()...); err != nil {
			return nil, fmt.Errorf("orders: %w", err)
		}
		out = append(out, o)
	}
	return out, rows.Err()
}
