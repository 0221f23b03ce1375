package main

func ofUpgrades() []sabotage {
	return []sabotage{
		{
			"a publisher does not look whether its tables are there", "internal/engine/enroll/enroll.go",
			"if errors.As(err, new(*store.TablesError)) || errors.Is(err, dialect.ErrQuoting) {", "if errors.Is(err, dialect.ErrQuoting) {",
			engine, "PublisherNeedsItsTables", nil,
		},
		{
			"a publisher does not look whether its tables are old", "internal/store/tables.go",
			"case dialect.Classify(err) == dialect.Schema:", "case false:",
			engine, "PublisherNeedsItsTables", nil,
		},
		{
			"tables change while a consumer has two names", "migrations/former.go",
			"ok && apart.Abs() < sinceRenaming", "ok && apart.Abs() < 0",
			"./internal/upgrade", "RollingUpgrade", nil,
		},
	}
}
