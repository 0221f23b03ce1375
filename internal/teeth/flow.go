package main

// ofFlow are about how much the engine does at a time, and for whom.
func ofFlow() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"one slow event holds up the other aggregates of its consumer", "internal/engine/flow/speed.go",
			"queued, full, s.Batch.Box())", "queued, full, time.Hour)",
			engine + " ./internal/simulation", "SlowEventHoldsUp|SlowEventLeaves", nil,
		},
		{
			"a slow event counts among the workers that a strained database bears", "internal/engine/flow/workers.go",
			"slow := max(box, slowBatches*w.usual)", "slow := max(box, slowBatches*w.usual) + time.Hour",
			rooms, "Slow", nil,
		},
		{
			"retries of a few that fail open the circuit for all", "internal/engine/flow/circuit.go",
			"if first {", "if first || true {",
			rooms, "Circuit", nil,
		},
		{
			"a delivery that asks for another run later counts as a failure of its consumer", "internal/engine/delivery/circuit.go",
			"return 0, false", "return flow.Failed, true",
			rooms, "WhatAnAnswerSays", nil,
		},
		{
			"what has run before is a probe of the circuit like any other", "internal/engine/delivery/queue.go",
			"if probes {\n\t\tif batch", "if false {\n\t\tif batch",
			rooms, "FailedRetries", nil,
		},
		{
			"what waited behind an event goes to the end of all that is due", "internal/store/wake.go",
			`THEN e.created_at ELSE`, `THEN " + o.d.Now + " ELSE`,
			engine, "PlaceOfItsAge", nil,
		},
		{
			"what ends while others are put off behind it wakes nobody", "internal/engine/claim/fromlog.go",
			"if err == nil {\n\t\tr.Woken", "if false {\n\t\tr.Woken",
			engine, "WhatEndsWhile", nil,
		},
		{
			"retries that are refused make new deliveries run alone", "internal/engine/delivery/delivery.go",
			"Again: !d.isFirstRun()", "Again: false",
			rooms, "ShortTurns", nil,
		},
		{
			"a type that is refused shares transactions with others", "internal/engine/flow/partsize.go",
			"return len(p.limits) == 0 ||", "return len(p.limits) >= 0 ||",
			rooms, "LimitedGroupIsAlone|BatchesOfItsOwn", nil,
		},
		{
			"a refusal is held against the first delivery of the transaction", "internal/engine/delivery/parts.go",
			"r.ln.refused(ds, ds[first])", "r.ln.refused(ds, ds[0])",
			rooms, "OnlyItsOwnType", nil,
		},
		{
			"retries that are refused have turns as long as those of new deliveries", "internal/engine/delivery/queue.go",
			"len(batch) == 1 && kind == claim.Retries {", "len(batch) == 1 && kind > claim.Orphans {",
			rooms, "ShortTurns", nil,
		},
		{
			"a slow lane queues all that it can while others starve", "internal/engine/flow/speed.go",
			"	if !s.Prefetch.Knows() {", "	if s.Prefetch.Knows() || true {",
			rooms, "RoomForThose", nil,
		},
		{
			"a refusal makes every delivery run alone", "internal/engine/flow/partsize.go",
			"l.most = min(n/2, enoughTogether)", "l.most = 1",
			rooms, "RefusalsCost|HalvesWhatShares", nil,
		},
		{
			"nobody sees a backlog in the consume log", "internal/engine/flow/batchsize.go",
			" || more)", " || more && false)",
			rooms, "BatchSizeFollows", nil,
		},
	}
}
