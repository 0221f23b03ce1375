package main

// ofTheDoors are the sabotages of what operators and programs around the engine rest on.
func ofTheDoors() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"a process whose publisher has ended is ready", "ops/probe.go",
			"case running:", "case running || expected:",
			"./ops", "ReadyIsWhat", nil,
		},
		{
			"each probe looks at the database itself", "ops/probe.go",
			"\tif l := p.look; l != nil {", "\tif l := p.look; l != nil && p.unready {",
			"./ops", "PilesUpNoProbes", nil,
		},
		{
			"a probe shows what the database said", "ops/probe.go",
			`"It does not answer as it should: the log says why."`, `err.Error()`,
			"./ops", "ShowNoSecrets", nil,
		},
		{
			"tables of another release are ready", "ops/probe.go",
			"tables.OK, tables.Says = false, misfit.Table+", "tables.OK, tables.Says = true, misfit.Table+",
			"./ops", "AnotherReleaseAreNotReady", nil,
		},
		{
			"a job of a user takes the turns of the library's", "schedule/schedule.go",
			"case slices.Contains(engine.Reserved(), name):", `case slices.Contains(engine.Reserved(), name) && cron == "":`,
			"./schedule", "LibrarysJobs|Mistakes", nil,
		},
		{
			"a job with mistakes is left out, and the others run", "schedule/schedule.go",
			"if err := errors.Join(s.mistakes...); err != nil || s.runner != nil {", "if err := error(nil); err != nil || s.runner != nil {",
			"./schedule", "Mistakes", nil,
		},
		{
			"a job that is added too late never runs, and nobody says so", "schedule/schedule.go",
			"\t\t\tclose(s.late)\n", "",
			"./schedule", "AddedTooLate", nil,
		},
		{
			"a publisher of which nothing is configured removes nothing", "outbox/publisher.go",
			"if cfg.Retention.Keep >= 0 {", "if cfg.Retention.Keep > 0 {",
			engine, "PublisherRemovesWhatIsOld", nil,
		},
		{
			"a publisher removes what the program's own retention keeps", "outbox/publisher.go",
			"\th.cleans = true\n", "",
			engine, "WithoutRetentionRemovesNothing", nil,
		},
		{
			"a backfill of several consumers looks at the first only", "outbox/intervene.go",
			"if len(iv.Consumers) > 1 {", "if len(iv.Consumers) > 9 {",
			"./outbox", "InterventionsAreRefused", nil,
		},
		{
			"a backfill gives a consumer again what an operator has skipped", "outbox/intervene.go",
			"if _, ok := had[e.EventID]; ok {", "if st, ok := had[e.EventID]; ok && st != store.Skipped {",
			"./ops", "BackfillLeavesAlone", nil,
		},
		{
			"a backfill gives a consumer types that it does not take", "outbox/intervene.go",
			"\tif !takes {", "\tif !takes && consumer == \"\" {",
			"./ops", "BackfillLeavesAlone|BackfillGivesThePast", nil,
		},
		{
			"a past event does not hold up later ones of its aggregate", "outbox/intervene.go",
			"changes, err := a.o.settler.RollUpIn(ctx, a.tx, events)", "changes, err := a.o.settler.RollUpIn(ctx, a.tx, events[:0])",
			"./ops", "Backfill|LiveEventsWait", nil,
		},
	}
}
