package main

func ofTheOrder() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"tenants share an aggregate", "internal/dialect/indexes.go",
			`return "COALESCE(" + a + ".tenant_id, 0) = COALESCE(" + b + ".tenant_id, 0) AND "`,
			`return "COALESCE(" + a + ".tenant_id, 0) > -1 AND "`,
			engineAndLives, "Tenant|SimulatedLives", nil,
		},
		{
			"events of an aggregate are claimed out of turn", "internal/engine/claim/claimable.go",
			"case w.First != 0 && w.First <= r.OutboxID, late", "case w.First != 0 && w.First <= r.OutboxID && false, late",
			engine, "BehindAnother", nil,
		},
		{
			"an event that falls due passes one that another instance has in flight", "internal/engine/claim/claimable.go",
			"late && w.LastLeased > r.OutboxID:", "late && w.LastLeased > r.OutboxID && false:",
			engine, "WaitsForWhatIsInFlight", nil,
		},
		{
			"an event that was put back waits for an earlier one in flight", "internal/engine/claim/claimable.go",
			"late && w.LastLeased > r.OutboxID:", "late && w.LastLeased != 0:",
			engine, "PutBackDoesNotWaitForASlow", nil,
		},
		{
			"an event that falls due passes a delivery that runs elsewhere", "internal/store/everyevent.go",
			"return a.Running != 0 && a.Running != id", "return false",
			engine, "WaitsForARunningRetry", nil,
		},
		{
			"what runs elsewhere is hidden by deliveries of earlier events", "internal/store/gate.go",
			"err = o.lookElsewhere(ctx, idb, g, heads, found)", "err = ctx.Err()",
			"./internal/store", "SeenBehind", nil,
		},
		{
			"a parked event is in everybody's way", "internal/store/everyevent.go",
			`"(p.event_type IN (?) OR`, `"(p.event_type IN (?) OR p.status = 'SCHEDULED' OR`,
			engine, "NobodyTakesBlocks", nil,
		},
		{
			"the order question walks along all that is open", "internal/store/everyevent.go",
			`return " AND " + o.d.Receiver("l") + " = ?" + more`, `return " AND COALESCE(" + o.d.Receiver("l") + ", '') = ?" + more`,
			engine, "HugeAggregate", nil,
		},
		{
			"the order question walks no further than the first event of a batch", "internal/store/everyevent.go",
			"o.ahead(g, e, slices.Max(ids))", "o.ahead(g, e, slices.Min(ids))",
			engine, "DifferentVersionsSideBySide", nil,
		},
		{
			"order by the time at which events are due", "internal/engine/claim/claimable.go",
			"func(a, b eventrow.Row) int { return cmp.Compare(a.OutboxID, b.OutboxID) })\n\tlocked",
			"func(a, b eventrow.Row) int { return -cmp.Compare(a.OutboxID, b.OutboxID) })\n\tlocked",
			engine, "Order|Lives", nil,
		},
		{
			"a failed delivery does not hold up those behind it", "internal/store/everyevent.go",
			"[]int64{a.Waiting, a.Dead, a.InHand, a.Past}", "[]int64{a.Dead, a.InHand, a.Past}",
			engine, "OrderIsKept|OneBadEvent", nil,
		},
		{
			"a direct delivery does not ask", "internal/engine/delivery/deliver.go",
			"\treturn m.ask(ctx, tx, ds)\n}", "\tif ds[0].isDirect() {\n\t\treturn aside, nil\n\t}\n\treturn m.ask(ctx, tx, ds)\n}",
			engine, "EveryDeliveryAsks", nil,
		},
		{
			"a delivery never asks about the order", "internal/store/gate.go",
			"case g.Ordered && ahead.Before(a.Event.ID):", "case g.Ordered && ahead.Before(a.Event.ID) && false:",
			engine, "EveryDeliveryAsks", nil,
		},
		{
			"a handed over event passes what is in flight elsewhere", "internal/engine/claim/handover.go",
			"first != 0 && first < row.OutboxID", "first != 0 && first < 0",
			engine, "HandOverLooks", nil,
		},
		{
			"the hand-over waits for a lock", "internal/store/everyevent.go",
			"isFresh + c.d.SkipLocked", "isFresh",
			engine, "HandOverWaits", nil,
		},
		{
			"a claim sees nothing in its way", "internal/store/claim.go",
			"AND p.status <> 'SCHEDULED' AND NOT (", "AND p.status <> 'SCHEDULED' AND 1 = 0 AND NOT (",
			engine, "BehindAnother", nil,
		},
		{
			"only rows of the log block", "internal/store/everyevent.go",
			"if !g.Replay {", "if false {",
			engine, "WithoutARow", nil,
		},
		{
			"the order gate asks only about types of this release", "internal/store/everyevent.go",
			`"(p.event_type IN (?) OR`, `"(p.event_type IN (?) OR 1 = 0 AND`,
			engine, "ParkedEventKeepsItsPlace", nil,
		},
		{
			"the model's lanes run what was put back behind later events in one batch", "internal/model/rules.go",
			"DirectAsk: true, BatchInOrder: true,", "DirectAsk: true,",
			"./internal/model", "EnginesRulesSuffice", nil,
		},
		{
			"later events pass what a new consumer still has to get of the past", "internal/store/everyevent.go",
			"[]int64{a.Waiting, a.Dead, a.InHand, a.Past}", "[]int64{a.Waiting, a.Dead, a.InHand}",
			engineAndLives, "LiveEventsWaitBehindThePast|SimulatedLives", nil,
		},
		{
			"what was claimed with a failed delivery runs outside", "internal/engine/delivery/external.go",
			`aside[d] == "" && a != store.MayRun {`, `aside[d] == "" && a != store.MayRun && d.isDirect() {`,
			engine, "ExternalDeliveryWaits", nil,
		},
	}
}
