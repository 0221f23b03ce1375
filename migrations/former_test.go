package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/migrations"
)

// beforeKeys takes migration 7 back: consumers have aliases, and no key of their own.
func beforeKeys(t *testing.T, db *bun.DB) func(query string, args ...any) {
	t.Helper()
	exec := func(query string, args ...any) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), query, args...)
		require.NoError(t, err, query)
	}
	exec("DELETE FROM bc_schema_version WHERE version = 7")
	exec("ALTER TABLE bc_consumer DROP COLUMN display_name")
	return exec
}

// ago is the time of the database, so many minutes ago.
func ago(db *bun.DB, minutes string) string {
	return map[string]string{
		"mysql": "UTC_TIMESTAMP(6) - INTERVAL " + minutes + " MINUTE", "pg": "now() - INTERVAL '" + minutes + " minutes'",
		"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-" + minutes + " minutes') || '000')",
	}[db.Dialect().Name().String()]
}

// What a deployment with aliases has stands under the consumers' present names afterwards.
func TestFormerNamesBecomeTheKeyOfTheirConsumer(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		exec := beforeKeys(t, db)
		const consumer = "INSERT INTO bc_consumer (name, event_types, aliases, seen_at) VALUES "
		exec(consumer + `('Wallet', '["order.paid"]', '["WalletConsumer", "Purse"]', ` + ago(db, "0") + ")")
		exec(consumer + `('WalletConsumer', '["order.paid"]', '["Purse"]', ` + ago(db, "600") + ")")
		exec(consumer + `('Purse', '["order.paid"]', '[]', ` + ago(db, "9000") + ")")
		exec(consumer + `('Back', '["order.paid"]', '[]', ` + ago(db, "0") + ")")           // its renaming was taken back
		exec(consumer + `('Renamed', '["order.paid"]', '["Back"]', ` + ago(db, "30") + ")") // for a while
		exec(consumer + `('Malformed', 'nonsense', '["WalletConsumer', ` + ago(db, "0") + ")")
		exec("INSERT INTO bc_consumer_type (consumer_name, event_type) VALUES ('WalletConsumer', 'order.paid'), ('Wallet', 'order.paid'), " +
			"('Back', 'order.paid')")
		const delivery = "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) VALUES "
		exec(delivery + "('WalletConsumer', 'e1', 'order.paid', 'SUCCESS'), ('WalletConsumer', 'e2', 'order.paid', 'PENDING'), " +
			"('WalletConsumer@replay', 'e1', 'order.paid', 'FAILED')")
		exec(delivery + "('Purse', 'e3', 'order.paid', 'SUCCESS'), ('WalletConsumer', 'e3', 'order.paid', 'FAILED'), ('Wallet', 'e3', " +
			"'order.paid', 'PENDING')")
		exec(delivery + "('WalletConsumer', 'e4', 'order.paid', 'PENDING'), ('Wallet', 'e4', 'order.paid', 'SUCCESS')")
		exec(delivery + "('Back', 'e1', 'order.paid', 'SUCCESS'), ('Other', 'e1', 'order.paid', 'SUCCESS')")
		exec("INSERT INTO bc_delivery_attempt (consumer_name, event_id, attempt, outcome, instance, duration_us) " +
			"VALUES ('WalletConsumer', 'e2', 1, 'FAILED', 'i', 1)")

		require.NoError(t, migrations.Up(t.Context(), db))
		require.Equal(t, []string{
			"Back e1 SUCCESS", "Other e1 SUCCESS", "Wallet e1 SUCCESS", "Wallet@replay e1 FAILED", "Wallet e2 PENDING",
			"Purse e3 SUCCESS", "Wallet e3 SKIPPED", "WalletConsumer e3 SKIPPED", "Wallet e4 SUCCESS", "WalletConsumer e4 SKIPPED",
		}, column1(t, db, "SELECT says FROM (SELECT consumer_name, event_id, "+concat(db, "consumer_name", "event_id", "status")+
			" AS says FROM bc_event_consume_log) AS l ORDER BY event_id, consumer_name"))
		require.Equal(t, []string{"Wallet"}, column1(t, db, "SELECT consumer_name FROM bc_delivery_attempt"))
		require.Equal(t, []string{"Back", "Malformed", "Renamed", "Wallet"}, column1(t, db, "SELECT name FROM bc_consumer ORDER BY name"))
		require.Equal(t, []string{"Back", "Wallet"}, column1(t, db, "SELECT consumer_name FROM bc_consumer_type ORDER BY consumer_name"))
	})
}

// concat is the columns with spaces between them.
func concat(db *bun.DB, a, b, c string) string {
	if db.Dialect().Name().String() == "mysql" {
		return "CONCAT(" + a + ", ' ', " + b + ", ' ', " + c + ")"
	}
	return a + " || ' ' || " + b + " || ' ' || " + c
}

// In the middle of a rolling rename, nobody can say under which name a delivery will be recorded next.
func TestUpRefusesWhileAConsumerHasBothNames(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		exec := beforeKeys(t, db)
		exec(`INSERT INTO bc_consumer (name, event_types, aliases, seen_at) VALUES ('Wallet', '[]', '["WalletConsumer"]', ` + ago(db, "0") +
			"), ('WalletConsumer', '[]', '[]', " + ago(db, "2") + ")")
		err := migrations.Up(t.Context(), db)
		require.ErrorContains(t, err, `instances run the consumer "Wallet" under its former name "WalletConsumer" too`)
		require.ErrorContains(t, err, "stop those of the older release")
		exec("DELETE FROM bc_consumer WHERE name = 'WalletConsumer'")
		require.NoError(t, migrations.Up(t.Context(), db))
	})
}
