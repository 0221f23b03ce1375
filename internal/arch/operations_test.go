package arch_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// Every statement of the operations guide runs on every database it is meant for.
func TestOperationsGuideRuns(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?s)```sql( mysql)?\n(.*?)```").FindAllStringSubmatch(read(t, "docs/operations.md"), -1)
	require.Greater(t, len(blocks), 10)
	for _, dialect := range testdb.Dialects() {
		t.Run(dialect, func(t *testing.T) {
			t.Parallel()
			db := testdb.Open(t, dialect)
			for _, b := range blocks {
				if b[1] != "" && testdb.Dialect(dialect) != "mysql" {
					continue
				}
				_, err := db.ExecContext(t.Context(), strings.TrimSuffix(strings.TrimSpace(b[2]), ";"))
				require.NoError(t, err, b[2])
			}
		})
	}
}
