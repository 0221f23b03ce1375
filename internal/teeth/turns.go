package main

// ofTurns are about what is claimed next.
func ofTurns() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"a backlog of NEW events is claimed to its end", "internal/engine/claims.go",
			"if !isExhaustive && !time.Now().Before(until) {",
			"if !isExhaustive && c.plan.Due() != claim.Of(claim.New) && !time.Now().Before(until) {",
			"./internal/simulation " + rooms, "BacklogDelays|DueDeliveriesHaveRoom", nil,
		},
		{
			"the first kind of due work in the list goes first", "internal/engine/claim/turns.go",
			"t.last[k] = t.n", "_ = k",
			"./internal/engine/claim", "Starves|TurnsGoRound", nil,
		},
		{
			"a lane takes what has come first", "internal/engine/delivery/queue.go",
			"q.turns.Take(kind)", "q.turns = claim.Turns{}",
			"./internal/simulation " + rooms, "BacklogDelays|DueDeliveriesHaveRoom", nil,
		},
		{
			"a batch has the events of an aggregate as they came into the queue", "internal/engine/delivery/queue.go",
			"if isLate {", "if isLate && len(batch) == 0 {",
			rooms, "BatchKeepsTheOrder", nil,
		},
		{
			"a machine on which transactions are slow leases less and less", "internal/engine/flow/speed.go",
			"together && batch > 1", "together && batch < 0",
			rooms, "SlowTransactions", nil,
		},
		{
			"a full queue takes nothing from the consume log", "internal/engine/delivery/refill.go",
			"q.leaseShare(kind)-q.ln.queue.count(kind), q.c", "q.leaseShare(kind)-len(q.ln.queue.ds), q.c",
			"./internal/simulation " + rooms, "BacklogDelays|DueDeliveriesHaveRoom", nil,
		},
		{
			"RunOnce ends behind what is blocked", "internal/engine/claim/walk.go",
			"case r.IsFull && w.at.IsBefore(r.Last) && (w", "case false && (w",
			engine, "RunOnceGetsPast", nil,
		},
		{
			"RunOnce does not come back for what waited for its own events", "internal/engine/claims.go",
			"err != nil || (!isLeft && !isMoved && !isWoken) {", "err != nil || isMoved || isWoken || !isLeft || r.claims != nil {",
			engine, "RunOnceComesBack", nil,
		},
		{
			"RunOnce does not come back for what it has put off", "internal/engine/claims.go",
			"if isWoken, err = r.lanes.WakePutOff(ctx); err == nil {", "if err = ctx.Err(); err == nil {",
			engine, "RunOnceDeliversWhatIsBehind", nil,
		},
		{
			"what is put off straight from a claim is forgotten", "internal/engine/delivery/outcome.go",
			"o.l.putOff.add(o.c.Key, d.Event.ID)", "_ = d",
			rooms, "WhatWasPutOff", nil,
		},
		{
			"what a claim from the log puts off is forgotten", "internal/engine/delivery/refill.go",
			"q.l.putOff.add(q.c.Key, d.EventID)", "_ = d",
			rooms, "WhatWasPutOff", nil,
		},
		{
			"what has failed since it was put off does not wait for its time", "internal/engine/delivery/outcome.go",
			"o.l.putOff.drop(o.c.Key, d.Event.ID)", "_ = d",
			rooms, "WhatWasPutOff", nil,
		},
		{
			"RunOnce does not look again for deliveries that were locked", "internal/engine/claims.go",
			"if c.lanes.Has(waiting) {\n\t\treturn true, nil", "if c.lanes.Has(waiting) {\n\t\treturn false, nil",
			engine, "RunOnceComesBackForALocked", nil,
		},
		{
			"RunOnce does not look again for what other releases have left", "internal/engine/claims.go",
			"return answer.Left, nil", "return answer.Left && false, nil",
			engine, "RunOnceComesBackForWhatOthers", nil,
		},
		{
			"a lane that has just looked for what others have left does not look again for RunOnce", "internal/engine/delivery/left.go",
			"if mustSeeAll || time.Now().After", "if time.Now().After",
			engine, "RunOnceComesBackForWhatOthers", nil,
		},
		{
			"retried deliveries are no progress of RunOnce", "internal/engine/claims.go",
			"r.rollUps.Deliveries(), r.backfills", "0, r.backfills",
			engine, "RunOnceComesBackFor", nil,
		},
		{
			"lanes count as idle while one wakes another", "internal/engine/delivery/lanes.go",
			"return l.woken.Load() == woken", "return woken >= 0",
			rooms, "LanesAreNotIdle", nil,
		},
		{
			"delayed events that must wait hide those behind them", "internal/engine/claim/walk.go",
			"case r.IsFull && r.Last == (store.Cursor{}):", "case r.IsFull && r.Last == (store.Cursor{}) && false:",
			engine, "RunOnceGetsPastWhatIsBlocked", nil,
		},
		{
			"deliveries that must wait hide those behind them", "internal/engine/delivery/refill.go",
			"return q.noteMore(claimed.Found, room, len(left) > 0)",
			"return q.noteMore(claimed.Found, room, len(left) > 0) && " +
				"len(claimed.Deliveries) > 0",
			engine, "RunOnceGetsPastDeliveries", nil,
		},
		{
			"what is put off behind a retry waits for the next look", "internal/engine/delivery/deliver.go",
			"if woken > 0 {", "if woken < 0 {",
			"./internal/engine/delivery", "EndOfADeliveryWakesTheNext", nil,
		},
		{
			"a claim goes on at the moment where the last one has ended, not behind the event", "internal/engine/claim/watermark.go",
			"m.low = r.Last // however", "m.low = store.Cursor{DueAt: r.Last.DueAt} // however",
			"./internal/engine/claim", "PlaceOfTheNextClaim", nil,
		},
	}
}
