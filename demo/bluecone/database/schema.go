// Package database keeps the demo's tables.
package database

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/migrations"
)

// tables of the five modules. Every module touches its own only. KEY(n) and TIME stand for
// what the databases spell differently.
var tables = []string{ //nolint:gochecknoglobals // a constant
	`demo_meta (name KEY(64) PRIMARY KEY, value KEY(255) NOT NULL)`,
	`demo_idempotency (idem_key KEY(191) PRIMARY KEY, request KEY(64) NOT NULL, response LONG NOT NULL, created_at TIME)`,
	`demo_user (id KEY(64) PRIMARY KEY, created_at TIME)`,
	`demo_order (id KEY(64) PRIMARY KEY, user_id KEY(64) NOT NULL, status KEY(32) NOT NULL,
		total_cents BIGINT NOT NULL, wallet_cents BIGINT NOT NULL,
		points BIGINT NOT NULL, coupon_id KEY(64) NOT NULL, coupon_cents BIGINT NOT NULL, payable_cents BIGINT NOT NULL, earned BIGINT NOT NULL,
		refund_id KEY(64) NOT NULL, created_at TIME, paid_at WHEN, refunded_at WHEN)`,
	`demo_refund (refund_id KEY(64) PRIMARY KEY, order_id KEY(64) NOT NULL, created_at TIME)`,
	`demo_payment (pay_no KEY(128) PRIMARY KEY, order_id KEY(64) NOT NULL, created_at TIME)`,
	`demo_coupon (id KEY(64) PRIMARY KEY, user_id KEY(64) NOT NULL, cents BIGINT NOT NULL, status KEY(32) NOT NULL)`,
	`demo_coupon_lock (order_id KEY(64) PRIMARY KEY, coupon_id KEY(64) NOT NULL, status KEY(32) NOT NULL, locked_at TIME)`,
	`demo_coupon_operation (idem_key KEY(191) PRIMARY KEY, coupon_id KEY(64) NOT NULL, order_id KEY(64) NOT NULL, created_at TIME)`,
	`demo_wallet (user_id KEY(64) PRIMARY KEY,
		available BIGINT NOT NULL, frozen BIGINT NOT NULL, spent BIGINT NOT NULL, granted BIGINT NOT NULL)`,
	`demo_wallet_freeze (order_id KEY(64) PRIMARY KEY, user_id KEY(64) NOT NULL,
		cents BIGINT NOT NULL, status KEY(32) NOT NULL, frozen_at TIME)`,
	`demo_wallet_ledger (idem_key KEY(191) PRIMARY KEY, user_id KEY(64) NOT NULL, order_id KEY(64) NOT NULL,
		d_available BIGINT NOT NULL, d_frozen BIGINT NOT NULL, d_spent BIGINT NOT NULL, created_at TIME)`,
	`demo_points (user_id KEY(64) PRIMARY KEY, available BIGINT NOT NULL, frozen BIGINT NOT NULL)`,
	`demo_points_freeze (order_id KEY(64) PRIMARY KEY, user_id KEY(64) NOT NULL,
		points BIGINT NOT NULL, status KEY(32) NOT NULL, frozen_at TIME)`,
	`demo_points_ledger (idem_key KEY(191) PRIMARY KEY, user_id KEY(64) NOT NULL, order_id KEY(64) NOT NULL,
		d_available BIGINT NOT NULL, d_frozen BIGINT NOT NULL, created_at TIME)`,
	`demo_points_handover (name KEY(64) PRIMARY KEY, position BIGINT NOT NULL)`,
}

var indexes = map[string]string{ //nolint:gochecknoglobals // a constant
	"demo_order_expiry":         "demo_order (status, created_at)",
	"demo_order_paid_at":        "demo_order (paid_at, id)",
	"demo_order_refunded_at":    "demo_order (refunded_at, id)",
	"demo_coupon_user":          "demo_coupon (user_id)",
	"demo_coupon_lock_expiry":   "demo_coupon_lock (status, locked_at)",
	"demo_wallet_freeze_expiry": "demo_wallet_freeze (status, frozen_at)",
	"demo_points_freeze_expiry": "demo_points_freeze (status, frozen_at)",
	"demo_wallet_ledger_user":   "demo_wallet_ledger (user_id)",
	"demo_wallet_ledger_order":  "demo_wallet_ledger (order_id)",
	"demo_points_ledger_user":   "demo_points_ledger (user_id)",
	"demo_points_ledger_order":  "demo_points_ledger (order_id)",
	"demo_coupon_op_order":      "demo_coupon_operation (order_id)",
}

const owner = "bluecone demo"

// Up makes the tables of bluecone and of the demo, also when several instances start at
// once. It refuses tables of the demo's names that the demo has not made.
func Up(ctx context.Context, db *bun.DB) error { return up(ctx, db, "demo_") }

// UpModule is [Up] for a module that runs in a process of its own: the demo's tables are those of this module only.
func UpModule(ctx context.Context, db *bun.DB, module string) error {
	return up(ctx, db, "demo_"+module)
}

// up makes those of the demo's tables whose names begin so.
func up(ctx context.Context, db *bun.DB, prefix string) error {
	d, err := Of(db)
	if err != nil {
		return err
	}
	if err := refuseForeign(ctx, db, d); err != nil {
		return err
	}
	if err := migrations.Up(ctx, db); err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err = create(ctx, db, d, prefix); err == nil || try == 10 {
			return err
		}
		select { // another instance creates the same
		case <-time.After(time.Duration(try) * 50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func create(ctx context.Context, db *bun.DB, d Dialect, prefix string) error {
	for _, t := range tables {
		if !strings.HasPrefix(t, prefix) && !strings.HasPrefix(t, "demo_meta") {
			continue
		}
		if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+spell(d, t)); err != nil {
			return fmt.Errorf("create the demo's tables: %w", err)
		}
	}
	for name, on := range indexes {
		if !strings.HasPrefix(on, prefix) {
			continue
		}
		if d.Name == "mysql" {
			if n, err := count(ctx, db, "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = DATABASE() AND index_name = ?",
				name); err != nil || n > 0 {
				if err != nil {
					return err
				}
				continue
			}
			if _, err := db.ExecContext(ctx, "CREATE INDEX "+name+" ON "+on); err != nil {
				return fmt.Errorf("create the demo's index on %s: %w", on, err)
			}
			continue
		}
		if _, err := db.ExecContext(ctx, "CREATE INDEX IF NOT EXISTS "+name+" ON "+on); err != nil {
			return fmt.Errorf("create the demo's index on %s: %w", on, err)
		}
	}
	_, err := db.ExecContext(ctx, "INSERT INTO demo_meta (name, value) VALUES ('owner', ?)"+d.Ignore("name"), owner)
	return err
}

func spell(d Dialect, table string) string {
	text, long, at, when, tail := "VARCHAR(", "TEXT", "timestamptz NOT NULL DEFAULT statement_timestamp()", "timestamptz NULL", ""
	switch d.Name {
	case "mysql":
		long, at, when = "LONGTEXT", "DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))", "DATETIME(6) NULL"
		tail = " ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
	case "sqlite":
		at, when = "TEXT NOT NULL DEFAULT "+d.Now, "TEXT NULL"
	}
	return strings.NewReplacer("KEY(", text, " TIME", " "+at, " LONG ", " "+long+" ", " WHEN", " "+when).Replace(table) + tail
}

// refuseForeign answers an error if the demo's tables are there, hold something, and do not
// carry the demo's mark.
func refuseForeign(ctx context.Context, db *bun.DB, d Dialect) error {
	if ours, err := marked(ctx, db, d); err != nil || ours {
		return err
	}
	for _, table := range []string{"demo_order", "demo_wallet", "bc_outbox_event"} {
		there, err := exists(ctx, db, d, table)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		n, err := count(ctx, db, "SELECT COUNT(*) FROM "+table)
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		// Again: another instance that has started meanwhile made its mark before it saved any.
		if ours, err := marked(ctx, db, d); err != nil || ours {
			return err
		}
		return fmt.Errorf("the table %s holds %d rows that are not the demo's: give it a database of its own (%w)", table, n, errForeign)
	}
	return nil
}

// marked reports whether the demo has made its tables here.
func marked(ctx context.Context, db *bun.DB, d Dialect) (bool, error) {
	there, err := exists(ctx, db, d, "demo_meta")
	if err != nil || !there {
		return false, err
	}
	n, err := count(ctx, db, "SELECT COUNT(*) FROM demo_meta WHERE name = 'owner' AND value = ?", owner)
	return n > 0, err
}

func exists(ctx context.Context, db *bun.DB, d Dialect, table string) (bool, error) {
	query := "SELECT COUNT(*) FROM information_schema.tables WHERE table_name = ? AND table_schema = " +
		map[string]string{"mysql": "DATABASE()", "postgres": "current_schema()"}[d.Name]
	if d.Name == "sqlite" {
		query = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
	}
	n, err := count(ctx, db, query, table)
	return n > 0, err
}

var errForeign = fmt.Errorf("foreign rows")

func count(ctx context.Context, db bun.IDB, query string, args ...any) (int, error) {
	var n int
	err := db.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}
