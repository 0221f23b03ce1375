package main

// ofMany are about what must not grow with the number of consumers.
func ofMany() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"a look for due deliveries has a condition for each consumer", "internal/store/look.go",
			`lookDeliveries, "w.name FROM ("+NewQueues(c.d, c.stmts).Due()+") AS w")`,
			`lookDeliveries, "w.name FROM ("+NewQueues(c.d, c.stmts).Due()+strings.Repeat(" OR c.name = ''", 2_000)+") AS w")`,
			engine, "ManyConsumers", nil,
		},
		{
			"each consumer is announced by a statement of its own", "internal/store/announce.go",
			"const mostBytes = 600_000", "const mostBytes = 1",
			"./internal/simulation", "IdleInstance", nil,
		},
		{
			"what is due for a consumer is found by reading all that waits for it", "internal/store/queues.go",
			`IS NOT NULL"+q.first()`, `IS NOT NULL ORDER BY l.id LIMIT 1"`,
			"./internal/store", "QueuesAreFound", nil,
		},
		{
			"PostgreSQL reads all events for the first that is due", "internal/store/look.go",
			`" ORDER BY e.next_retry_at LIMIT 1) = 1"`, `" LIMIT 1) = 1"`,
			"./internal/store", "ALookReadsNothing", nil,
		},
		{
			"PostgreSQL reads the whole log for the first lease", "internal/store/queues.go",
			`q.waitingOf("PROCESSING")+q.first()`, `q.waitingOf("PROCESSING")+" LIMIT 1"`,
			"./internal/store", "ALookReadsNothing", nil,
		},
		{
			"PostgreSQL plans the question of the order each time", "internal/dialect/indexes.go",
			`LIMIT ?) AS e", "e.aggregate", []any{ids, int64(len(ids))}`, `OFFSET 0) AS e", "e.aggregate", []any{ids}`,
			"./internal/store", "IsPlannedOnce", nil,
		},
		{
			"the order question has a part for others of the same aggregates, though there are none", "internal/store/everyevent.go",
			"if len(rest) > 0 {", "if len(rest) >= 0 {",
			"./internal/store", "QuestionOfTheOrderIsPlannedOnce", nil,
		},
		{
			"what the handlers of a batch record takes a statement for each", "internal/store/marks.go",
			"mostNotes = 100", "mostNotes = 1",
			"./internal/store", "NotesAreStored", nil,
		},
		{
			"only the first queues are listed", "internal/store/queued.go",
			"mostQueues = 20_000", "mostQueues = 30",
			"./ops", "ManyConsumersAreListed", nil,
		},
		{
			"a look asks about each consumer, whether anything waits for it or not", "alert/look_consumers.go",
			"\tfor _, c := range l.consumers {\n\t\tknown[c.Name] = true",
			"\tfor _, c := range l.consumers {\n" +
				"\t\tl.queued = append(l.queued, store.Queue{Consumer: c.Name, Status: \"FAILED\"})\n\t\tknown[c.Name] = true",
			"./alert", "StuckConsumerAmongMany", nil,
		},
		{
			"the list of consumers ends after one page", "console/consumers.go",
			"v.Next = v.Rows[pageSize-1].Name", "_ = pageSize",
			"./console", "ThousandsOfConsumers", nil,
		},
		{
			"what waits is found by reading all deliveries", "internal/store/queued.go",
			`" GROUP BY consumer_name, status LIMIT "`, `" WHERE id > 0 GROUP BY consumer_name, status LIMIT "`,
			"./internal/store", "QueuesAreFound", nil,
		},
		{
			"a registry is taken for the one that is known already", "internal/engine/registry/registry.go",
			"if all != nil && all.state == state {", "if all != nil {",
			engine, "RegistryIsReadAgain", nil,
		},
	}
}
