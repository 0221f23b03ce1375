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
			"/*!50000 DROP TABLE x */": dialect.CommitsByItself, "SET @a = 1": dialect.OfSession, "SET autocommit = 0": dialect.CommitsByItself,
			"START TRANSACTION": dialect.CommitsByItself, "SAVEPOINT a": dialect.OfTransaction, "ROLLBACK TO SAVEPOINT a": dialect.OfTransaction,
			"/*M!100100 DROP TABLE x */": dialect.CommitsByItself, "set SESSION a = 1, @@AutoCommit = 1": dialect.CommitsByItself,
			"SET STATEMENT max_statement_time = 9 FOR TRUNCATE TABLE x":           dialect.CommitsByItself,
			"/*M!110602 SET STATEMENT a = ' FOR ' FOR */ INSERT INTO x VALUES(1)": dialect.OfTransaction,
			"SET STATEMENT a = 1 FOR SELECT 1 FOR UPDATE":                         dialect.OfTransaction, "SET STATEMENT a": dialect.OfSession,
			"LOAD INDEX INTO CACHE x": dialect.CommitsByItself, "LOAD DATA INFILE 'x' INTO TABLE x": dialect.OfTransaction,
			"CREATE OR REPLACE TEMPORARY TABLE x (id INT)": dialect.OfSession, "create or replace table x (id INT)": dialect.CommitsByItself,
			"ANALYZE TABLE x": dialect.CommitsByItself, "ANALYZE SELECT 1": dialect.OfTransaction,
			"ANALYZE FORMAT=JSON SELECT 1": dialect.OfTransaction, "EXECUTE IMMEDIATE 'SET @a = 1'": dialect.OfSession,
			"(SELECT 1)": dialect.OfTransaction, "# why\nLOCK TABLES x WRITE": dialect.CommitsByItself, "COMMIT": dialect.OfTransaction,
		},
		"postgres": {
			"CREATE TABLE x (id INT)": dialect.OfTransaction, "CREATE TEMP TABLE x (id INT)": dialect.OfSession,
			"SET LOCAL jit = off": dialect.OfTransaction,
			"SET search_path = x": dialect.OfSession, "SET CONSTRAINTS ALL DEFERRED": dialect.OfTransaction, "TRUNCATE x": dialect.OfTransaction,
			"LOCK TABLE x": dialect.OfTransaction, "DISCARD ALL": dialect.OfSession, "DO $$ BEGIN END $$": dialect.OfSession,
			"CALL p()": dialect.OfSession, "EXECUTE s": dialect.OfSession,
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

// What ends a transaction is found under a comment that MariaDB runs, and behind SET STATEMENT, too.
func TestEndsOfTransactions(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]struct{ ends, may bool }{
		"COMMIT": {ends: true}, "/*M! COMMIT */": {ends: true}, "/*!50000 ROLLBACK */": {ends: true}, "ROLLBACK TO SAVEPOINT a": {},
		"SELECT 1": {}, "SELECT 1; ": {}, "SELECT 1; SELECT 2": {may: true}, "CALL p()": {may: true}, "EXECUTE s": {may: true},
		"SET STATEMENT a = 1 FOR CALL p()": {may: true}, "SET STATEMENT a = ';' FOR SELECT 1": {may: true},
	} {
		require.Equal(t, want.ends, dialect.Ends(query), query)
		require.Equal(t, want.may, dialect.MayEnd(query), query)
	}
}
