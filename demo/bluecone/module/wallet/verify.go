package wallet

import (
	"context"
	"fmt"
)

// Verify lists accounts in which money has appeared or vanished.
func (f *Facade) Verify(ctx context.Context) ([]string, error) {
	rows, err := f.db.QueryContext(ctx, `SELECT w.user_id, w.available, w.frozen, w.spent, w.granted,
			SUM(l.d_available), SUM(l.d_frozen), SUM(l.d_spent)
		FROM demo_wallet w JOIN demo_wallet_ledger l ON l.user_id = w.user_id GROUP BY w.user_id, w.available, w.frozen, w.spent, w.granted`)
	if err != nil {
		return nil, fmt.Errorf("wallet: verify: %w", err)
	}
	defer rows.Close()
	var broken []string
	for rows.Next() {
		var user string
		var available, frozen, spent, granted, sumAvailable, sumFrozen, sumSpent int64
		if err := rows.Scan(&user, &available, &frozen, &spent, &granted, &sumAvailable, &sumFrozen, &sumSpent); err != nil {
			return nil, fmt.Errorf("wallet: verify: %w", err)
		}
		if available+frozen+spent != granted || available != sumAvailable || frozen != sumFrozen || spent != sumSpent || available < 0 {
			broken = append(broken, fmt.Sprintf("wallet of %s: available %d + frozen %d + spent %d, granted %d, ledger %d/%d/%d", user, available,
				frozen, spent, granted, sumAvailable, sumFrozen, sumSpent))
		}
	}
	return broken, rows.Err()
}
