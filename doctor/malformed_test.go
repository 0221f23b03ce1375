package doctor_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Each malformed row of the registry, of instances and of jobs is named, and those beside it are not.
func TestMalformedRowsAreNamed(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		tomorrow := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) + INTERVAL 2 DAY", "pg": "now() + interval '2 days'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '+2 days') || '000')",
		}[db.Dialect().Name().String()]
		for _, row := range []string{
			"INTO bc_consumer (name, event_types, aliases) VALUES ('Wallet', '[]', '[]')",
			"INTO bc_consumer_type (consumer_name, event_type) VALUES ('Wallet', 'order.paid'), ('Nobody', 'order.paid'), ('Wallet', '')",
			"INTO bc_instance (name, host, version) VALUES ('good', '', ''), ('', '', '')",
			"INTO bc_instance (name, host, version, in_flight) VALUES ('fewer', '', '', -1)",
			"INTO bc_instance (name, host, version, seen_at) VALUES ('later', '', '', " + tomorrow + ")",
			"INTO bc_job_lease (job_code, last_status) VALUES ('good', 'SUCCESS'), ('new', NULL), ('', NULL), ('odd', '?')",
			"INTO bc_job_lease (job_code, lock_version) VALUES ('below', -1)",
			"INTO bc_job_lease (job_code, locked_until) VALUES ('leased', " + tomorrow + ")",
			"INTO bc_job_lease (job_code, last_due_at) VALUES ('ahead', " + tomorrow + ")",
		} {
			_, err := db.ExecContext(t.Context(), "INSERT "+row)
			require.NoError(t, err, row)
		}
		report, err := doctor.Examine(t.Context(), db, doctor.Config{})
		require.NoError(t, err)
		found := make(map[string][]string)
		for _, f := range report {
			if f.Check == "malformed rows" {
				require.Equal(t, doctor.Warn, f.Level)
				found[f.Rule] = append(found[f.Rule], f.Args["type"]+f.Args["instance"]+f.Args["job"])
			}
		}
		require.Equal(t, map[string][]string{
			"type_malformed":     {`"order.paid"`, `""`},
			"instance_malformed": {`""`, `"fewer"`, `"later"`},
			"job_malformed":      {`""`, `"ahead"`, `"below"`, `"leased"`, `"odd"`},
		}, found)
	})
}
