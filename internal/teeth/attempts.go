package main

const attempts = "./internal/attempts"

// ofAttempts are the sabotages of what attempts to break the guarantees have fixed.
func ofAttempts() []sabotage {
	return []sabotage{
		{
			"a handler goes on outside of the transaction that SQLite has ended", "internal/handler/fence.go",
			`case f.dialect.Name == "sqlite" && f.isOver(ctx):`, "case false:",
			attempts, "TransactionThatAStatementHasEnded", nil,
		},
		{
			"a statement that commits by itself is sent", "internal/handler/fence.go",
			"case dialect.CommitsByItself:\n", "case dialect.Reach(-1):\n",
			attempts, "StatementThatCommitsByItself", nil,
		},
		{
			"a session that a handler has changed goes back to the pool", "internal/handler/fence.go",
			"\tif changed {", "\tif changed && false {",
			attempts, "SessionThatAHandlerChanges", nil,
		},
		{
			"sessions that spoil text are taken", "internal/dialect/quoting.go",
			`strings.Contains(value, "NO_BACKSLASH_ESCAPES")`, `strings.Contains(value, "no such mode")`,
			attempts, "SettingsThatSpoil", nil,
		},
		{
			"a consumer is given later what an operator has given up", "outbox/intervene.go",
			"\t\tif isClosed {", "\t\tif isClosed && false {",
			attempts, "GivenUpIsNotGiven", nil,
		},
		{
			"a tenant that no number of ours holds cannot be read", "internal/store/rows.go",
			"\tif n.Scan(value) != nil {\n", "\tif err := n.Scan(value); err != nil {\n\t\treturn err\n",
			attempts, "TenantTooLarge", nil,
		},
		{
			"operators see no page with such a tenant", "internal/store/view/view.go",
			"\tcase \"mysql\":\n\t\treturn \"CASE", "\tcase \"\":\n\t\treturn \"CASE",
			attempts, "TenantTooLarge", nil,
		},
	}
}

// ofReadings are the sabotages of faults of the engine that were found by reading.
func ofReadings() []sabotage {
	return []sabotage{
		{
			"a retry that outlasts its lease runs no longer for others", "internal/store/gate.go",
			"isThere && !abandoned[l.id] {", "isThere && !abandoned[l.id] && l.isValid {",
			engine, "DelayedEventWaitsForARunningRetry", nil,
		},
		{
			"a wait goes beyond MaxAge", "internal/engine/delivery/verdict.go",
			"v.Delay = min(v.Delay, limit-age)", "v.Delay = max(v.Delay, limit-age)",
			engine, "NoWaitGoesBeyondMaxAge", nil,
		},
		{
			"a skipped delivery is replayed", "outbox/intervene.go",
			"if done[e.EventID] != store.Success {", "if !done[e.EventID].Done() {",
			engine, "SkippedDeliveryIsNotReplayed", nil,
		},
		{
			"an operator waits for every delivery of an event", "internal/store/operation.go",
			`" WHERE e.id IN (?) AND e.status IN (?) ORDER BY e.id"+p.d.ForUpdate, bun.List(ids), bun.List(states)))`,
			`" WHERE e.event_id = ? AND e.status IN (?) ORDER BY e.id"+p.d.ForUpdate, eventID, bun.List(states)))`,
			engine, "OperatorDoesNotWait", nil,
		},
	}
}
