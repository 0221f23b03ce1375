package points

import (
	"context"
	"fmt"
)

// Verify lists accounts whose balance is not the sum of their ledger.
func (f *Facade) Verify(ctx context.Context) ([]string, error) {
	rows, err := f.db.QueryContext(ctx, `SELECT p.user_id, p.available, p.frozen, SUM(l.d_available), SUM(l.d_frozen)
		FROM demo_points p JOIN demo_points_ledger l ON l.user_id = p.user_id GROUP BY p.user_id, p.available, p.frozen`)
	if err != nil {
		return nil, fmt.Errorf("points: verify: %w", err)
	}
	defer rows.Close()
	var broken []string
	for rows.Next() {
		var user string
		var available, frozen, sumAvailable, sumFrozen int64
		if err := rows.Scan(&user, &available, &frozen, &sumAvailable, &sumFrozen); err != nil {
			return nil, fmt.Errorf("points: verify: %w", err)
		}
		if available != sumAvailable || frozen != sumFrozen || frozen < 0 {
			broken = append(broken, fmt.Sprintf("points of %s: available %d, frozen %d, ledger %d/%d", user, available, frozen, sumAvailable,
				sumFrozen))
		}
	}
	return broken, rows.Err()
}
