package main

// ofKeys are the ways to break what is promised of keyed events and of retention.
func ofKeys() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"a keyed event goes to the table of events at once", "internal/store/insert.go",
			"case len(ids) == 0:", "case len(ids) <= len(events):",
			engine, "RepeatedKeyedSaveHoldsUpNobody|KeyedSaveNeverWaitsForTheEngine", nil,
		},
		{
			"keys are taken in the order in which they are saved", "internal/store/keys.go",
			"return slices.Sorted(slices.Values(ids))", "return slices.Clone(ids)",
			engine, "KeyedSavesDoNotDeadlock", nil,
		},
		{
			"keyed events get a random id", "outbox/event.go",
			"r.ID = EventID(c.tenantID, r.Type, key)", "r.ID = uuid.NewString()",
			engine + " ./consistency", "KeyedEvent|Backfilled", nil,
		},
		{
			"a plain transaction gets bun's placeholders", "internal/store/tx.go",
			`if d.Name == "postgres" {`, `if d.Name == "oracle" {`,
			engine, "SaveTakesEveryKind", nil,
		},
		{
			"a repeated keyed event is inserted again once its event is gone", "internal/store/insert.go",
			`" WHERE "+unsaved+s.d.Ignore`, `" WHERE ? = ? AND ? <> ''"+s.d.Ignore`,
			engine, "KeysOutliveTheirEvents", nil,
		},
		{
			"a commit that bun does not see wakes nobody", "outbox/unseen.go",
			"len(shown) > 0 {", "len(shown) > len(ids)*1000 {",
			engine, "WakesAfterACommitThat|LooksForACommit", nil,
		},
		{
			"the looks for a commit never end", "outbox/unseen.go",
			"return !now.Before(c.until) })", "return now.IsZero() })",
			engine, "LooksForACommit", nil,
		},
		{
			"with Notify nobody is notified", "internal/store/tx.go",
			"if t.notice == nil {", "if t.notice == nil || query != \"\" {",
			engine, "Notify", nil,
		},
		{
			"a connection that listened is given back to the pool", "internal/listen/listen.go",
			"errors.Join(receive(ctx, driverConn, notified), driver.ErrBadConn)", "receive(ctx, driverConn, notified)",
			engine, "NotifyWakes", nil,
		},
		{
			"a lost connection to listen on is not replaced", "internal/listen/listen.go",
			"case errors.Is(err, ErrCannot):", "case err != nil:",
			engine, "NotifyWakes", nil,
		},
		{
			"a transaction of another database is taken", "outbox/tx.go",
			"name != o.db.Dialect().Name()", "name < 0",
			engine, "TransactionOfAnotherDatabase", nil,
		},
		{
			"a transaction that was never begun is used", "outbox/tx.go",
			"case isUnopened(reflect.ValueOf(tx)):", "case tx == Tx(nil):",
			engine, "SaveNeedsAnOpenTransaction", nil,
		},
		{
			"retention removes what is not SENT", "internal/store/removal.go",
			"WHEN status = 'SENT' AND COALESCE", "WHEN COALESCE",
			engine, "Retention",
			[]edit{{"internal/store/removal.go", "CASE WHEN e.status = 'SENT' THEN 1 END = 1", "1 = 1"}},
		},
		{
			"retention deletes deliveries of events that it has not locked", "outbox/retention.go",
			"if events, err = lock(ctx, tx, events); err != nil || len(events) == 0 {", "if len(events) == 0 {",
			engine, "ReplayBesideRetention", nil,
		},
		{
			"retention forgets the keys of what it removes", "outbox/retention.go",
			"err := r.ob.keys.Mark(ctx, r.ob.db, store.OldEventIDs(events))", "err := error(nil)",
			engine, "KeysOutliveTheirEvents", nil,
		},
		{
			"retention forgets the ids that others have chosen", "internal/store/keys.go",
			"!isOfKey(id) && !entered[id] })", "!isOfKey(id) && len(entered) >= 0 })",
			"./internal/store ./relay/inbox ./ledger", "KeysOfRemovedEvents|KnownWhenItsEventHasGone", nil,
		},
		{
			"the key of an event that has stayed is forgotten", "internal/store/keys.go",
			", 0) = 0 ORDER BY k.removed_at", ", 0) < 2 ORDER BY k.removed_at",
			"./internal/store", "KeyOfAnEventThatStays", nil,
		},
		{
			"an inbox takes messages for those of another one", "relay/inbox/read.go",
			"[]string{s.cfg.Source, r.Topic,", "[]string{r.Topic,",
			"./relay/inbox", "TakeNoMessages",
			[]edit{{"relay/inbox/read.go", "[]any{s.cfg.Source, ", "[]any{"}},
		},
		{
			"an inbox takes messages for those of a topic that is gone", "relay/inbox/read.go",
			"if n := nanos(r.Time); n != 0 {", "if n := nanos(r.Time); n < 0 {",
			"./relay/inbox", "TopicThatIsMadeAnew", nil,
		},
		{
			"a redelivery by RabbitMQ is another message", "relay/rabbitmq/message.go",
			"if name == deliveryCount || name == acquiredCount {", "if name == acquiredCount {",
			"./relay/rabbitmq", "RedeliveryIsTheSameMessage", nil,
		},
		{
			"an event that is gone may be delivered", "internal/store/gate.go",
			"answers[a.Event.ID] = Gone", "answers[a.Event.ID] = MayRun",
			engine, "FrozenBeyondRetention", nil,
		},
	}
}
