package doctor_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/testplan"
)

// The doctor asks as often about thousands of consumers as about twenty, and finds what is wrong with one of them.
func TestManyConsumersAreExamined(t *testing.T) {
	t.Parallel()
	testplan.AsManyStatements(t, func(t *testing.T, dialect string, n int) (asked int) {
		t.Helper()
		db := testdb.Open(t, dialect)
		testplan.Consumers(t, db, n)
		_, err := db.ExecContext(t.Context(), "INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status) "+
			"VALUES (?, 'odd', 'order.paid', 'SENDING')", testplan.Consumer(n))
		require.NoError(t, err)
		count := testplan.Count(db)
		found := examine(t, db, doctor.Config{})["delivery states"]
		asked = count.N()
		require.Equal(t, doctor.Warn, found.Level)
		require.Contains(t, found.Says, "deliveries of "+testplan.Consumer(n)+` have the status ["SENDING"]`)
		return asked
	})
}
