package main

// ofRecovery are those of what a failing delivery, or a process that has died, leaves behind.
func ofRecovery() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"an attempt counts when the delivery is leased", "internal/store/waiting.go",
			"status = 'PROCESSING', started = CASE", "status = 'PROCESSING', attempts = attempts + 1, started = CASE",
			engine, "LeasesOfDead", nil,
		},
		{
			"a run that kills its process does not count", "internal/store/start.go",
			"attempts = attempts + 1, started = 2,", "started = 2,",
			engine, "MayHaveStarted", nil,
		},
		{
			"what a dead process had started is forgotten", "internal/store/waiting.go",
			"d.Suspect, d.counted = begun.Int64 != notStarted,", "d.Suspect, d.counted = begun.Int64 < notStarted,",
			engine, "MayHaveStarted", nil,
		},
		{
			"whatever a dead process had leased runs alone", "internal/store/waiting.go",
			"d.Suspect, d.counted = begun.Int64 != notStarted,", "d.Suspect, d.counted = d.Before == Processing,",
			engine, "LeasesOfDead", nil,
		},
		{
			"nobody notes what starts", "internal/store/start.go",
			`" SET started = 1 WHERE "`, `" SET started = 0 WHERE "`,
			"./internal/crash", "OnlyWhatKills",
			[]edit{{"internal/store/start.go", `pairs, "started = 1", leasedBy)`, `pairs, "started = 0", leasedBy)`}},
		},
		{
			"suspects run side by side until their last attempt", "internal/engine/delivery/start.go",
			"if again {", "if again && false {",
			"./internal/engine/delivery", "SuspectThatHasLost", nil,
		},
		{
			"events of a dead process run like new ones", "internal/engine/dispatch.go",
			"Suspect: d.isSuspect(f, c.Key)", "Suspect: false",
			engine, "IsAnnouncedBefore", nil,
		},
		{
			"a delivery of such an event kills twice before it runs alone", "internal/engine/dispatch.go",
			"Suspect: d.isSuspect(f, c.Key)", "Suspect: false",
			"./internal/crash", "OnlyWhatKills", nil,
		},
		{
			"what waits of events of a dead process is forgotten to be suspect", "internal/engine/dispatch.go",
			"waiting[i].Suspect = d.isSuspect(f, waiting[i].Consumer)", "waiting[i].Suspect = false",
			engine, "SuspectWherever", nil,
		},
		{
			"a run without an answer is not in the history", "internal/store/attempts.go",
			"if len(expired) == 0 {", "if len(expired) >= 0 {",
			engine, "WithoutAnAnswer", nil,
		},
		{
			"a lane leases what is due", "internal/engine/flow/speed.go",
			"return min(most, s.Settings.Queue)", "return max(most, s.Settings.Queue)",
			engine, "NoMoreThanItStarts", nil,
		},
		{
			"a restart under the same name waits for the leases of the run before", "internal/engine/upkeep/upkeep.go",
			"if err := u.expirePredecessor(ctx); err != nil {", "if err := ctx.Err(); err != nil {",
			engine, "TakesOverFrom", nil,
		},
		{
			"what a dead process has put off is due too late", "internal/engine/upkeep/upkeep.go",
			"if err := u.wakeForgotten(ctx); err != nil {", "if err := ctx.Err(); err != nil {",
			engine, "DeadProcessPutOff", nil,
		},
		{
			"what is put off waits for the poll", "internal/engine/delivery/outcome.go",
			"\to.l.Signals.dueAgainAfter(wait)\n", "",
			engine, "IsPutOffWaitsForNoPoll", nil,
		},
		{
			"leases of a dead process that run out wake nobody", "internal/engine/claims.go",
			"if err == nil && takesOver {", "if err == nil && takesOver && false {",
			engine, "TakingOverWakes", nil,
		},
		{
			"what is taken over wakes nobody behind it", "internal/engine/delivery/deliver.go",
			"if d.done == nil || d.kind == claim.Expired {", "if d.done == nil {",
			engine, "TakenOverWakes", nil,
		},
		{
			"a start wakes whatever is put off", "internal/engine/claim/fromlog.go",
			"if n, err = WakeOpen(ctx, db, log.Order, g, chunk); err != nil {", "if err = log.WakeUp(ctx, db, idsOf(chunk)); err != nil {",
			engine, "DeadProcessPutOff",
			[]edit{
				{
					"internal/engine/claim/fromlog.go", "// WakeForgotten makes", "func idsOf(ds []store.Leased) (ids []int64) {\n" +
						"\tfor _, d := range ds {\n\t\tids = append(ids, d.ID)\n\t}\n\treturn ids\n}\n\n// WakeForgotten makes",
				}, {"internal/engine/claim/fromlog.go", "var n int", "n := len(chunk)"},
			},
		},
		{
			"a lease names the process, not its run", "internal/instance/instance.go",
			`suffix := "#" + hex.EncodeToString(random[:])`, `suffix := "#dead"`,
			engine, "TakesOverFrom", nil,
		},
		{
			"what is never counted never ends", "internal/engine/delivery/verdict.go",
			"case limit <= 0:", "case limit != -1:",
			engine, "EveryDeliveryEndsAfterItsMaxAge", nil,
		},
		{
			"while a service is away only the delivery that is tried can be too old", "internal/engine/delivery/refill.go",
			"if !closed && q.isCutOff() {", "if false && !closed && q.isCutOff() {",
			engine, "ManyRefused", nil,
		},
		{
			"an operator's retry does not begin a new age", "internal/store/operation.go",
			"attempts = 0, first_run_at = NULL,", "attempts = 0,",
			engine, "MaxAgeDepends", nil,
		},
		{
			"the history of a delivery has no end", "internal/store/attempts.go",
			"if d.Version <= 2*keptAttempts {", "if d.Version >= 0 {",
			engine, "HistoryKeeps", nil,
		},
		{
			"what the end of a publisher gives back takes no turn", "internal/engine/delivery/outcome.go",
			"if err := o.writeBack(ctx, leased, 0); err != nil &&",
			"if err := o.l.regs.Log.PutBack(ctx, o.l.cfg.Instance, 0, *leased[0].lease); err != nil &&",
			rooms, "QuiesceTakesItsTurn", nil,
		},
		{
			"lanes begin batches while others give back theirs", "internal/engine/delivery/lanes.go",
			"left[ln] = ln.shut()", "ln.out.giveBack(ctx, ln.shut()...)",
			rooms, "QuiesceTakesItsTurn", nil,
		},
		{
			"a settle whose answer is lost counts as a lost lease", "internal/engine/settle/lost.go",
			"Status(row.Status) == status; isSettled", "Status(row.Status) == status && false; isSettled",
			"./internal/engine/settle", "LostAnswerOfASettle", nil,
		},
		{
			"what is too old and too large for a page ends without its event", "internal/engine/delivery/age.go",
			"if !found && isPart {", "if !found && isPart && false {",
			"./internal/engine/delivery", "TooOldWithItsPayload", nil,
		},
		{
			"a look at everything that fails waits for its next time", "internal/engine/engine.go",
			"if err == nil && t.isFull {", "if t.isFull {",
			"./internal/engine", "AFullLookThatFails", nil,
		},
	}
}
