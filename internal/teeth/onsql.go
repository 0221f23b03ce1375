package main

// ofOnSQL are the sabotages of the ways to use the bus with SQL of one's own.
func ofOnSQL() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"errors of rows that a bus.Tx has answered are not looked at", "internal/handler/door.go",
			"\tr.over = true\n\treturn r.done(err)\n", "\tr.over = true\n\treturn err\n",
			engine, "OnSQLSwallowed|OnSQLFindsOut", nil,
		},
		{
			"errors of prepared statements of a bus.Tx are not looked at", "internal/handler/door.go",
			"if err = done(err); err != nil {\n\t\treturn nil, err\n\t}\n\treturn res, nil", "_ = done\n\treturn res, err",
			engine, "OnSQLSwallowed", nil,
		},
		{
			"COMMIT by a bus.Tx is sent", "internal/handler/sqltx.go",
			"case dialect.Ends(query):", "case false:",
			engine, "OnSQLHandlerCannotEnd", nil,
		},
		{
			"Commit of a bus.Tx is an error that a handler may swallow", "internal/handler/sqltx.go",
			"\tt.fence.poison(err)\n\treturn err\n", "\treturn err\n",
			engine, "OnSQLHandlerCannotEnd", nil,
		},
		{
			"a COMMIT inside of another statement is not found out", "internal/handler/sqltx.go",
			"mayEnd := dialect.MayEnd(query)", "mayEnd := false",
			engine, "OnSQLFindsOut", nil,
		},
		{
			"others share the transaction with SQL that may end it", "internal/handler/sqltx.go",
			"case mayEnd && t.isShared:", "case mayEnd && false:",
			engine, "OnSQLFindsOut", nil,
		},
		{
			"others share the transaction that a handler of bun's ends", "internal/handler/fence.go",
			"case isShared && (ends || may):", "case isShared && false && (ends || may):",
			engine, "EndsTheTransactionOfSeveral", nil,
		},
		{
			"a handler goes on after its ROLLBACK", "internal/handler/fence.go",
			"case ends && (verb ==", "case false && (verb ==",
			engine, "EndsTheTransactionOfSeveral", nil,
		},
		{
			"runtime.Goexit in code of the user's ends the worker", "internal/contain/contain.go",
			"error { return <-Start(who, call) }", "error { return call() }",
			"./internal/contain", "CallsAreContained", nil,
		},
		{
			"a consumer that is paused as another is resumed is not noticed", "internal/store/registry.go",
			"\" THEN \" + r.d.Number(\"paused_until\") + \" END)\"", "\" THEN 1 END)\"",
			"./internal/store", "RegistryTellsWhenItHasChanged", nil,
		},
		{
			"a discarded event that nobody took is deleted", "outbox/intervene.go",
			"[]store.LockedEvent{e}, inLog)", "[]store.LockedEvent{e}, inLog || true)",
			engine, "DeleteSentKeepsWhatIsDiscarded", nil,
		},
		{
			"half of an event is discarded while the rest runs", "outbox/intervene.go",
			"err = a.notInFlight(ctx, iv.EventID, events)", "err = nil",
			engine, "DiscardOfWhatIsInFlight", nil,
		},
		{
			"a bulk backfill passes over what is in flight", "ops/bulk_run.go",
			"w.isHeld = w.b.Action == ActionBackfill &&", "w.isHeld = w.b.Action == \"\" &&",
			"./ops", "BackfillWaitsForWhatIsInFlight", nil,
		},
		{
			"a start that is no longer in the code stands still", "internal/engine/backfill/backfill.go",
			"if !b.cfg.Roster.IsFilled(c.Key) {", "if c.Config.StartFrom.IsZero() || !b.cfg.Roster.IsFilled(c.Key) {",
			engine, "StartThatIsTakenOut", nil,
		},
		{
			"what a handler left open stays open", "internal/handler/call.go",
			"\tdefer over() // before", "\t_ = over // before",
			engine, "OnSQLEndsWith", nil,
		},
		{
			"PrepareContext prepares behind a pooler", "internal/handler/door.go",
			"if !c.t.stmts.MayPrepare() {", "if false {",
			engine, "OnSQLIsPrepared", nil,
		},
		{
			"the last middleware used is outermost", "bus/use.go",
			"slices.Backward(around)", "slices.Backward(slices.Concat(around[1:], around[:1]))",
			"./bus", "MiddlewareIsAround", nil,
		},
		{
			"what a Backoff answers is believed", "internal/handler/consumer.go",
			"if d < 0 {\n\t\treturn 0, fmt", "if false {\n\t\treturn 0, fmt",
			"./bus", "Wiring|Backoff", nil,
		},
	}
}
