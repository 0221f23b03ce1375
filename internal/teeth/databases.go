package main

// ofDatabases are about what differs between databases and their releases.
func ofDatabases() []sabotage {
	return []sabotage{
		{
			"MySQL 9 sorts what is open before it answers the order question", "internal/dialect/indexes.go",
			`return l + ".open_aggregate, " + l + ".outbox_id"`, `return l + ".outbox_id"`,
			engine, "NoStatementScans", nil,
		},
		{
			"the migrations ask MySQL for an MD5", "migrations/lock.go",
			"SELECT COALESCE(DATABASE(), '')", "SELECT COALESCE(DATABASE(), MD5('x'))",
			"./migrations", "UpAppliesOnce", nil,
		},
		{
			"plans are asked for in whatever form the server likes", "internal/testplan/testplan.go",
			`return "EXPLAIN FORMAT=TRADITIONAL "`, `return "EXPLAIN "`,
			"./alert", "NoLookScans", nil,
		},
		{
			"a publisher waits for a pool that is closed", "internal/dialect/errors.go",
			"return errors.Is(err, ErrClosed())", "return err == nil && errors.Is(err, ErrClosed())",
			"./outbox ./internal/dialect", "WhenItsPoolIsClosed|ClosedPool", nil,
		},
		{
			"the doctor takes a MySQL that the migrations do not", "doctor/server.go",
			"!atLeast(version, 8, 0, 13)", "!atLeast(version, 8, 0, 1)",
			"./doctor", "LeastVersions", nil,
		},
	}
}
