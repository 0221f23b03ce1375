package main

// ofMany are about what must not grow with the number of consumers.
func ofMany() []sabotage {
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
			`q.d.MySQLOnly("l.consumer_name, l.status, ")+"l.next_retry_at LIMIT 1) <= "`, `"l.id LIMIT 1) <= "`,
			"./internal/store", "QueuesAreFound", nil,
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
