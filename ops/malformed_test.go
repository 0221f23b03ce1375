package ops_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ops"
)

// A row that is malformed in bc_bulk_operation keeps back no other bulk operation.
func TestMalformedRowsKeepBackNoOtherBulkOperation(t *testing.T) {
	t.Parallel()
	for what, set := range map[string]string{
		"without an id":                      "operation_id = ''",
		"whose request is none":              `request = '[]'`,
		"whose lease was counted to the end": "lock_version = 9223372036854775807",
		"that is too slow for anybody":       `request = '{"query":{"status":"DEAD"},"rate":1e-9}'`,
		"that is slower than still":          `request = '{"query":{"status":"DEAD"},"rate":-1}'`,
		"that has seen less than nothing":    "seen = -9223372036854775807, up_to = -1, total = -1",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				f := newFixture(t, db, ops.Config{}).consumers()
				f.die(10)
				of := func(id string) ops.NewBulk {
					return ops.NewBulk{ID: id, Action: ops.ActionRetry, Query: ops.Query{Status: "DEAD"}, Rate: 10_000}
				}
				_, err := f.ops.StartBulk(t.Context(), op, of("malformed"))
				require.NoError(t, err)
				f.exec("UPDATE bc_bulk_operation SET " + set)
				_, err = f.ops.StartBulk(t.Context(), op, of("good"))
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), testdb.Patience())
					defer cancel()
					_, _ = f.ops.RunBulkOnce(ctx) // it may report the malformed row
					b, err := f.ops.Bulk(t.Context(), "good")
					return err == nil && b.State == ops.BulkDone
				}, testdb.Patience(), time.Millisecond)
			})
		})
	}
}
