package main

// ofTheLedger are the sabotages of what callers of a ledger rest on.
func ofTheLedger() []sabotage { //nolint:funlen // a list
	const machine = "EverySequenceOfCalls|EveryCallMayDie"
	return []sabotage{
		{
			"what may have been started overtakes an earlier event of its aggregate", "internal/engine/remote/fetch.go",
			"\t\tif taken[d.Aggregate()] {", "\t\tif taken[d.Aggregate()] && !d.Suspect {",
			"./internal/engine/remote", "BeforeWhatMayHaveBeenStarted|APublisherHadInFlight", nil,
		},
		{
			"a SENT event that a consumer asks for holds up nothing", "internal/engine/remote/begin.go",
			"r.settler.RollUpIn(ctx, tx, locked)", "r.settler.RollUpIn(ctx, tx, locked[:0])",
			"./ledger ./internal/engine/remote", machine + "|BeginOfASentEvent", nil,
		},
		{
			"an instance believes what it was told of a consumer's types", "internal/engine/remote/fetch.go",
			"if !isNew && now.Sub(last) < announceEvery {", "if now.Sub(last) < announceEvery {",
			"./ledger ./internal/engine/remote", machine + "|SeesWhatAnotherInstance", nil,
		},
		{
			"what a dead program had comes back one by one", "internal/engine/remote/left.go",
			"Fresh: true, Limit: limit}", "Fresh: true, Limit: 1}",
			"./internal/engine/remote", "ADeadProgramHad", nil,
		},
		{
			"what was lost twice runs beside others of its kind", "internal/engine/remote/left.go",
			"if err != nil || highest > 1 {", "if highest = 0; err != nil {",
			"./internal/engine/remote", "ADeadProgramHad|ACountedRun", nil,
		},
		{
			"a counted run holds up others for as long as it lasts", "internal/store/remote.go",
			" AND started = 2 AND updated_at > \"+\n\t\tr.d.After, consumer, -dialect.Micro(within))", " AND started = 2\", consumer)",
			"./internal/engine/remote", "ACountedRun", nil,
		},
		{
			"a Fetch leases what is behind others of its aggregate", "internal/engine/claim/fromlog.go",
			"if q.OneEach {", "if q.OneEach && len(candidates) == 0 {",
			"./internal/engine/remote", "OneAggregateIsNotClaimedWhole", nil,
		},
		{
			"a delivery is begun that somebody has leased", "internal/engine/remote/begin.go",
			"case row.IsLeased():", "case false:",
			"./ledger", machine, nil,
		},
		{
			"a delivery is begun before an earlier event of its aggregate", "internal/engine/remote/begin.go",
			"err != nil || blocked {", "err != nil || (blocked && paused) {",
			"./ledger", machine, nil,
		},
		{
			"the end of a lease that is repeated has another answer", "internal/engine/remote/finish.go",
			"case row.Version == f.Lease.Version+1 && row.Status != store.Processing:", "case false:",
			"./ledger", machine, nil,
		},
		{
			"the end of a delivery wakes nothing", "internal/engine/remote/finish.go",
			"[]string{consumer}, 1, ds...)", "[]string{consumer}, 1, ds[:0]...)",
			"./ledger", machine, nil,
		},
		{
			"every call of Fetch looks, whoever waits", "ledger/consume.go",
			"looks := wait == 0 || !s.waiting.isIdle(m.GetConsumer())", "looks := true",
			"./ledger", "IdleFetches", nil,
		},
		{
			"orders whose points are elsewhere wait for ever", "demo/bluecone/monolith/monolith.go",
			"locks = append(locks, a.Orders.PointsTask(orders, points.Consumer))", "_ = a.Orders.PointsTask(orders, points.Consumer)",
			"./demo/bluecone/monolith", "PointsElsewhere", nil,
		},
		{
			"a program that starts beside RocketMQ is refused", "relay/rocketmq/rocketmq.go",
			"t.unsureSince.CompareAndSwap(0, now)", "",
			"./relay/rocketmq", "MissingTopicIsWaitedFor", nil,
		},
		{
			"a canceled reservation is confirmed", "ledger/reserve.go",
			"case of.State != spi.Prepared:", "case of.State != spi.Prepared && state == spi.Canceled:",
			"./ledger", machine, nil,
		},
		{
			"a producer that does not answer has canceled", "ledger/checkback.go",
			"return \"\", errors.New(\"the producer does not answer\")", "return spi.Canceled, nil",
			"./ledger", machine, nil,
		},
		{
			"a transaction commits after the ledger was told that it does not", "ledger/prepare.go",
			"case !first:", "case !first && tx == nil:",
			"./ledger", machine, nil,
		},
		{
			"the end of a remote delivery waits for a silent database for ever", "internal/engine/remote/finish.go",
			"context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)", "context.WithCancel(context.WithoutCancel(ctx))",
			"./internal/engine/remote", "HasADeadline", nil,
		},
		{
			"a service that a remote handler does not reach burns attempts", "internal/engine/pulled/answer.go",
			"case handler.IsUnreached(err), isTrouble", "case handler.IsUnreached(err) && isTrouble(err), isTrouble",
			"./internal/engine/pulled", "AnswerToAnError", nil,
		},
	}
}

// ofLedgerCalls are the sabotages of what the ledger refuses and ends, whatever its callers send.
func ofLedgerCalls() []sabotage {
	const remote = "./internal/engine/remote"
	return []sabotage{
		{
			"a result that is no JSON is stored", "internal/engine/remote/result.go",
			"case !json.Valid([]byte(f.Result)):", "case !json.Valid([]byte(f.Result)) && false:",
			remote + " ./ledger", "AResultIsJSON|AResultThatIsNoJSON", nil,
		},
		{
			"BeginConsume goes on with what kills its program", "internal/engine/remote/begin.go",
			"\tif leased.Suspect {", "\tif leased.Suspect && false {",
			remote, "BeginEndsADeliveryThatKills", nil,
		},
		{
			"BeginConsume gives what may kill to all at once", "internal/engine/remote/begin.go",
			"\tif row.Suspect {", "\tif row.Suspect && false {",
			remote, "BeginEndsOnlyTheDelivery", nil,
		},
		{
			"a list of JSON is read whole", "ledger/lists.go",
			"if list.Len() == most {", "if list.Len() < 0 {",
			"./ledger", "AListIsRead", nil,
		},
		{
			"a list of protobuf is read whole", "ledger/lists.go",
			"protoreflect.Repeated && before == most:", "protoreflect.Repeated && before < 0:",
			"./ledger", "AListIsRead", nil,
		},
		{
			"an event has the id of another one's key", "ledger/identity.go",
			"\tif !isKeyedID(id) ||", "\tif true || !isKeyedID(id) ||",
			"./ledger", "AnIDOfAKeyedEvent", nil,
		},
		{
			"an event has the id of another one", "ledger/identity.go",
			"found && of != identityOf(e) {", "found && of != identityOf(e) && false {",
			"./ledger", "AnIDThatAnotherEvent", nil,
		},
		{
			"a remote delivery has no age", "internal/engine/pulled/age.go",
			"sinceFirstRun < limit {", "sinceFirstRun >= 0 {",
			"./internal/engine/pulled ./ledger/remote", "AsOldAsMaxAge|MaxAgeEnds", nil,
		},
		{
			"what is put off is an attempt when its process ends", "ledger/remote/puller.go",
			"\t\tisDue = false", "\t\tisDue = true",
			"./ledger/remote", "AnEndOfTheProcess", nil,
		},
	}
}
