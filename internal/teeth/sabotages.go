package main

import "slices"

// sabotage is one way to break a promise.
type sabotage struct {
	name     string
	file     string
	old, new string
	packages string
	tests    string // the pattern of those that should notice
	also     []edit // what else has to be broken, because the promise has two guards
}

type edit struct{ file, old, new string }

func (s sabotage) edits() []edit { return append([]edit{{s.file, s.old, s.new}}, s.also...) }

const (
	engine = "./outbox"
	pure   = "./bus"
	rooms  = "./internal/engine/..."

	engineAndLives = "./outbox ./internal/simulation"
)

func sabotages() []sabotage {
	return slices.Concat(ofTheEngine(), ofTheOrder(), ofFlow(), ofTurns(), ofMany(), ofUnknownCommits(), ofRecovery(), ofVersions(),
		ofTheJobs(), ofKeys(), ofTheWiring(), ofUpgrades(), ofDatabases(), ofOperations(), ofSecurity(), ofAttempts(), ofReadings(),
		ofOperators(), ofTheDoors(), ofOnSQL(), ofTheLedger(), ofLedgerCalls())
}

func ofTheEngine() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"the transaction commits although a deadlock was swallowed", "internal/dialect/errors.go",
			"return c == TxRetry || c == Conn || c == Unavailable", "return c == Conn || c == Unavailable",
			engine, "Swallowed", nil,
		},
		{
			"what trouble has left leased is not given back", "internal/engine/settle/orphans.go",
			"if !g.mayHaveOrphans.Swap(false) {", "if !g.mayHaveOrphans.Swap(false) || true {",
			engine, "LeasesLeftByTrouble", nil,
		},
		{
			"what a claim has leased while the publisher was told to stop stays leased", "internal/engine/engine.go",
			"if err := r.releaseOrphans(ctx); err != nil { // the end", "if err := error(nil); err != nil { // the end",
			engine, "LeasesLeftByTheEnd", nil,
		},
		{
			"a lane asks a silent database without a limit", "internal/engine/delivery/parts.go",
			"context.WithTimeout(ctx, r.l.cfg.Lease)", "context.WithCancel(ctx)",
			engine, "SilentDatabaseHoldsNoLane", nil,
		},
		{
			"renewing waits for a handler's transaction", "internal/store/leases.go",
			"held(ctx, tx, l.d, owner, ds, l.d.SkipLocked)", "held(ctx, tx, l.d, owner, ds, l.d.ForUpdate)",
			engine, "HoldsUpNoRenewal", nil,
		},
		{
			"a registration ends with time", "internal/store/announce.go",
			`FROM bc_consumer"+r.named("name")+" ORDER BY name"`, `FROM bc_consumer WHERE seen_at > registered_at ORDER BY name"`,
			engine, "RegistrationDoesNotExpire", nil,
		},
		{
			"one malformed row of the registry stops every claim", "internal/engine/registry/registry.go",
			"all = g.snapshot(rows)\n",
			"all = g.snapshot(rows)\n\tfor _, err := range all.Malformed {\n\t\treturn nil, 0, err\n\t}\n",
			engine, "MalformedRows", nil,
		},
		{
			"the log knows a consumer by its name", "internal/engine/delivery/delivery.go",
			"Consumer: c.Key, EventID", "Consumer: c.Name, EventID",
			engine, "RenamedConsumer|RollingRename", nil,
		},
		{
			"tables are migrated in the middle of a rename", "migrations/former.go",
			"ok && apart.Abs() < sinceRenaming", "ok && apart.Abs() < 0",
			"./migrations", "BothNames", nil,
		},
		{
			"the log does not keep the order of an aggregate", "internal/store/delivery.go",
			"\" ORDER BY e.id\"", "\" ORDER BY e.id DESC\"",
			engine, "LogKeepsTheOrder", nil,
		},
		{
			"a consumer that only fails keeps all its workers", "internal/engine/flow/speed.go",
			"func (s *Speed) IsHalfOpen(now time.Time) bool { return ", "func (s *Speed) IsHalfOpen(now time.Time) bool { return false && ",
			rooms, "OneWorker", nil,
		},
		{
			"a lost lease of an event stops nothing", "internal/engine/delivery/lease.go",
			"(d.held != nil && d.held.IsLost())", "(d.held != nil && d.held.IsLost() && false)",
			engine, "StoppedExternal", nil,
		},
		{
			"a lost lease of a delivery stops nothing", "internal/engine/delivery/lease.go",
			"(d.own != nil && d.own.IsLost())", "(d.own != nil && d.own.IsLost() && false)",
			engine, "StoppedRetry", nil,
		},
		{
			"no last look before COMMIT", "internal/engine/delivery/deliver.go",
			"case !held.Leased, slices.ContainsFunc(ds, func(d *delivery) bool { return d.held.IsOver(held.Now) }):",
			"case !held.Leased && !slices.ContainsFunc(ds, func(d *delivery) bool { return d.held.IsOver(held.Now) }) && false:",
			engine, "FrozenInstance|LostLease", nil,
		},
		{
			"the marker is not looked for before COMMIT", "internal/engine/delivery/deliver.go",
			"case !held.Marked:", "case !held.Marked && false:",
			engine, "HandlerThatRollsBackItself", nil,
		},
		{
			"settling without token", "internal/store/everyevent.go",
			`const heldBy = "e.locked_by = ? AND CASE WHEN`, `const heldBy = "(1 = 1 OR e.locked_by = ?) AND CASE WHEN 1 = 1 OR`,
			engine, "LostLease",
			[]edit{
				{
					"internal/engine/settle/flight.go", "return dialect.Pair{ID: row.OutboxID, Version: row.LockVersion}",
					"return dialect.Pair{ID: row.OutboxID}",
				},
				{
					"internal/dialect/dialect.go", `const Under = "e.id IN (?) AND e.lock_version = ?"`,
					`const Under = "e.id IN (?) AND (1 = 1 OR e.lock_version = ?)"`,
				},
			},
		},
		{
			"on SQLite failures are written beside the deliveries", "internal/engine/budget/budget.go",
			"if b.hasOneWriter {\n\t\tover", "if b.hasOneWriter && false {\n\t\tover",
			engine, "OneWriter", nil,
		},
		{
			"a loop that waits for its turn does not stop", "internal/engine/budget/budget.go",
			"return acquire(ctx, b.tokens)", "return acquire(context.WithoutCancel(ctx), b.tokens)",
			rooms, "DrainTimeEndsHandlers", nil,
		},
		{
			"what waited is taken to wait still", "internal/engine/settle/settler.go",
			"maps.Copy(states, more)",
			"for id, of := range more { for name := range of { of[name] = store.Pending }; maps.Copy(states, " +
				"map[string]map[string]store.Status{id: of}) }",
			engine, "SettledAs", nil,
		},
		{
			"an event does not say why it failed", "internal/engine/settle/settler.go",
			"e.Failed = e.Failed || st == store.Failed || st == store.Dead", "e.Failed = e.Failed && st == store.Failed",
			engine, "EventsSayWhy", nil,
		},
		{
			"an event of which a delivery is missing is done", "internal/engine/settle/status.go",
			"d.Missing = true", "d.Missing = false",
			rooms, "StatusOfAnEvent", nil,
		},
		{
			"a roll-up changes what a publisher has leased", "internal/engine/settle/rollup.go",
			"[]Status{Failed, Dead, Sent}", `[]Status{Failed, Dead, Sent, "DISPATCHING"}`,
			rooms, "TestRollUp", nil,
		},
		{
			"an event is settled for an instance that has lost it", "internal/engine/settle/lost.go",
			"isSettled || (isDeleting && !ok) {", "isSettled || !isDeleting || !ok {",
			rooms, "TestSettle|LostEventsAreNotCounted", nil,
		},
		{
			"what a sweep has found is not looked at", "internal/engine/settle/sweep.go",
			"w.ids = w.ids[n:]", "w.ids = nil",
			rooms, "TestSweep", nil,
		},
		{
			"short lists are planned anew each time", "internal/prepared/conn.go",
			"const reckoned = 10", "const reckoned = 0",
			"./internal/prepared", "ShortLists", nil,
		},
		{
			"a statement is prepared behind a pooler", "internal/prepared/direct.go",
			"return told == is, mode, err", "return true, mode, err",
			engine, "BehindAPooler", nil,
		},
		{
			"claims in REPEATABLE READ", "internal/dialect/dialect.go",
			"return &sql.TxOptions{Isolation: sql.LevelReadCommitted}", "return &sql.TxOptions{Isolation: sql.LevelRepeatableRead}",
			engine, "SaveNeverWaits", nil,
		},
		{
			"a claim stops at what only seemed free", "internal/engine/claim/search.go",
			"tries == lookTries {", "tries > 0 {",
			"./internal/engine/claim", "OnlySeemedFree", nil,
		},
		{
			"claims go back to a blocked start", "internal/engine/claim/watermark.go",
			"\t\tm.low = before\n", "\t\t_ = before\n",
			"./internal/engine/claim", "BlockedStart", nil,
		},
		{
			"all instances rest while there is work", "internal/engine/claim/watermark.go",
			"if isIdle {", "if isIdle && false {",
			"./internal/engine/claim", "ClaimsRest|RestEnds", nil,
		},
		{
			"claims begin at the start after a rest", "internal/engine/claim/watermark.go",
			"m.whole = m.whole.Add(now.Sub(m.restingSince))", "m.whole = m.whole.Add(0)",
			"./internal/engine/claim", "ClaimAfterARest", nil,
		},
		{
			"an older release trusts its own list of types", "internal/engine/registry/registry.go",
			"if !slices.Contains(g.local[row.Key], t) {", "if g.local[row.Key] == nil {",
			engine, "RollingDeploy", nil,
		},
		{
			"handed over events are routed by an old registry", "internal/engine/settle/settling.go",
			"if f.routed == nil {", "if f.routed == nil || true {",
			engine, "HandOver", nil,
		},
		{
			"claims wait until deliveries that have to wait are in the log", "internal/engine/dispatch.go",
			"d.spiller.Add(spilled)", "d.spiller.Add(spilled)\n\t_ = d.spiller.Write(ctx)",
			engine, "ClaimsDoNotWait", nil,
		},
		{
			"what is held when a publisher ends is forgotten", "internal/engine/engine.go",
			"err := r.lanes.Drain(ctx)\n\tif err := r.spiller.Write(ctx); err != nil {",
			"err := r.lanes.Drain(ctx)\n\tif err := error(nil); err != nil {",
			engine, "EndLeavesNothingHeld", nil,
		},
		{
			"a full lane lets the others starve", "internal/engine/delivery/lane.go",
			"if starved {", "if false {",
			rooms, "Starved", nil,
		},
		{
			"leases are not renewed", "internal/engine/upkeep/upkeep.go",
			"if err := u.renew(ctx); err != nil {", "if err := ctx.Err(); err != nil {",
			engine, "LongHandler", nil,
		},
		{
			"the sweep does nothing", "internal/engine/settle/sweep.go",
			"w.ids, w.isLast = ids, len(ids) < sweepPage", "w.ids, w.isLast = ids[:0], len(ids) < sweepPage",
			engine, "SweepFinishes", nil,
		},
		{
			"nobody is told of a DEAD delivery", "internal/engine/delivery/outcome.go",
			"if o.l.regs.OnDeadLetter != nil {", "if o.l.regs.OnDeadLetter == nil {",
			rooms, "AnswerOfAHandlerIsStored|TriedUntilItsLastAttempt", nil,
		},
		{
			"a claim starts where the last one ended, always", "internal/engine/claim/watermark.go",
			"if isWhole || m.UntilWhole(now) <= 0 {", "if m.low == (store.Cursor{}) {",
			engine, "LateCommit|Order", nil,
		},
		{
			"a commit wakes nobody", "outbox/save.go",
			`if ev.Query != "COMMIT" {`, `if ev.Query != "NEVER" {`,
			engine, "WakesAfterCommit", nil,
		},
		{
			"deleted events are not looked for in the log", "outbox/query.go",
			"store.Known(ctx, idb, eventIDs, o.cfg.DeleteSent)", "store.Known(ctx, idb, eventIDs, !o.cfg.DeleteSent)",
			engine, "DeleteSent", nil,
		},
		{
			"a narrow window takes no claim", "internal/engine/claim/plan.go",
			"size < WorthwhileRoom(min(r.MostInFlight, r.MostLanes, most))",
			"size < WorthwhileRoom(min(r.MostInFlight, most))",
			engine, "NarrowWindow", nil,
		},
		{
			"the circuit stays closed", "internal/engine/flow/circuit.go",
			"c.until = now.Add(pause)", "_ = pause",
			rooms, "Circuit|Probes", nil,
		},
		{
			"a tenant's burst goes first", "internal/engine/claims.go",
			"return c.takeByID(ctx, others)", "return c.takeByID(ctx, others[:0])",
			engine, "Burst", nil,
		},
		{
			"a strained database gets all workers", "internal/engine/flow/pressure.go",
			"p.isStrained(1) && p.looks >= observedBefore", "p.isStrained(1) && p.looks < 0",
			rooms, "Pressure", nil,
		},
		{
			"a paused consumer goes on", "internal/engine/delivery/circuit.go",
			"return l.cfg.Roster.IsPaused(c.Key)", "return (l.cfg.Roster.IsPaused(c.Key) && false)",
			engine, "Paused", nil,
		},
		{
			"values that never fit are tried again", "internal/dialect/errors.go",
			`{Data, []uint16{1406,`, `{Other, []uint16{1406,`,
			engine, "DataError", nil,
		},
		{
			"what a database quotes back of a payload is logged and stored", "internal/text/text.go",
			`said = q.ReplaceAllString(said, "$1…$3")`, "_ = q",
			"./internal/text ./internal/signals", "ErrorsDoNotQuote|NoPayload", nil,
		},
		{
			"SQL that does not fit the tables burns attempts", "internal/handler/unreached.go",
			"if dialect.Classify(err) == dialect.Schema {", "if dialect.Classify(err) == dialect.Schema && false {",
			engine, "SchemaError", nil,
		},
		{
			"the marker is written after the handler", "internal/engine/delivery/deliver.go",
			"\tif aside, err = r.marks.mark(ctx, tx, ds); err != nil || len(aside) > 0 {\n\t\treturn aside, asInfra(fence, err)\n\t}\n" +
				"\tsilence.Stop()\n\thandled, err := r.handle(ctx, r.handed(fence, tx, ds), ds)\n",
			"\tsilence.Stop()\n\thandled, err := r.handle(ctx, r.handed(fence, tx, ds), ds)\n\tif err == nil {\n" +
				"\t\tif aside, err = r.marks.mark(ctx, tx, ds); err != nil || len(aside) > 0 {\n\t\t\treturn aside, asInfra(fence, err)\n\t\t}\n\t}\n",
			engine, "TwinsNeverRunAtOnce", nil,
		},
	}
}

func ofOperations() []sabotage {
	return []sabotage{
		{
			"a route of the console asks for no permission", "console/gate.go",
			"if !principalOf(r).Can(needs) {", "if !principalOf(r).Can(View) {",
			"./console", "EveryMutatingRoute", nil,
		},
		{
			"the console is open without an authorizer", "console/gate.go",
			"return Principal{}, ErrNobody", "return Principal{Name: \"anyone\", May: []Permission{View}}, nil",
			"./console", "ClosedWithout", nil,
		},
		{
			"other sites may make a browser act", "console/gate.go",
			"if err := c.cross.Check(r2); err != nil {", "if err := c.cross.Check(r2); err != nil && false {",
			"./console", "OtherSites", nil,
		},
		{
			"an intervention leaves no trace", "ops/act.go",
			"return store.WriteAudit(ctx, tx, a.d, entry)", "_ = entry\n\t\t\treturn nil",
			"./ops", "Payload|Pause|Bulk", nil,
		},
		{
			"a paused consumer may be away for ever", "alert/look_consumers.go",
			"case c.IsPaused && !l.isAway(c):", "case c.IsPaused:",
			"./alert", "EachRule", nil,
		},
		{
			"every look at what is wrong writes a message", "alert/state.go",
			"is, kind := step(was, &s, now, b.cfg)", "is, kind := step(was, &s, now, b.cfg)\n\tkind = Firing",
			"./alert", "OneFaultIsOneMessage", nil,
		},
	}
}
