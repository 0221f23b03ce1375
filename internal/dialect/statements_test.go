package dialect_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

func TestReachOfStatements(t *testing.T) {
	t.Parallel()
	for name, queries := range map[string]map[string]dialect.Reach{
		"mysql": {
			"INSERT INTO x VALUES (1)": dialect.OfTransaction, "SELECT 1": dialect.OfTransaction, "": dialect.OfTransaction,
			"/*":                      dialect.OfTransaction,
			"CREATE TABLE x (id INT)": dialect.CommitsByItself, "create\n temporary table x (id INT)": dialect.OfSession,
			"DROP TEMPORARY TABLE x": dialect.OfSession, "/* why */ DROP TABLE x": dialect.CommitsByItself,
			"-- why\nTRUNCATE x":       dialect.CommitsByItself,
			"/*!50000 DROP TABLE x */": dialect.CommitsByItself, "SET @a = 1": dialect.OfSession, "SET autocommit = 0": dialect.OfSession,
			"START TRANSACTION": dialect.CommitsByItself, "SAVEPOINT a": dialect.OfTransaction, "ROLLBACK TO SAVEPOINT a": dialect.OfTransaction,
			"(SELECT 1)": dialect.OfTransaction, "# why\nLOCK TABLES x WRITE": dialect.CommitsByItself, "COMMIT": dialect.OfTransaction,
		},
		"postgres": {
			"CREATE TABLE x (id INT)": dialect.OfTransaction, "CREATE TEMP TABLE x (id INT)": dialect.OfSession,
			"SET LOCAL jit = off": dialect.OfTransaction,
			"SET search_path = x": dialect.OfSession, "SET CONSTRAINTS ALL DEFERRED": dialect.OfTransaction, "TRUNCATE x": dialect.OfTransaction,
			"LOCK TABLE x": dialect.OfTransaction, "DISCARD ALL": dialect.OfSession,
		},
		"sqlite": {
			"PRAGMA query_only = 1": dialect.OfSession, "CREATE TABLE x (id INT)": dialect.OfTransaction,
			"CREATE TEMP TABLE x (id INT)": dialect.OfSession,
			"ATTACH DATABASE 'x' AS y":     dialect.OfSession, "WITH x AS (SELECT 1) SELECT * FROM x": dialect.OfTransaction,
		},
	} {
		for query, want := range queries {
			require.Equal(t, want, dialect.Dialect{Name: name}.ReachOf(query), "%s: %s", name, query)
		}
	}
}
