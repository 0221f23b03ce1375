package main

const attacked = "./internal/attack"

// ofSecurity are the ways to open what docs/security.md says is closed.
func ofSecurity() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"an error page reads the form of a refused request", "console/language.go",
			"r.PostForm.Get(\"lang\")", "r.FormValue(\"lang\")",
			"./console", "RefusedUploads",
			[]edit{{"console/gate.go", "r = c.bounded(w, r)", "_ = c.bounded"}},
		},
		{
			"a read goes on when nobody waits for it", "ops/access.go",
			"f.cancel()\n\tif a.flights", "if a.flights",
			"./ops", "EndsWhenNobodyWaits", nil,
		},
		{
			"one caller gets all places", "ops/turns.go",
			"return t.places - 1", "return t.places",
			"./ops", "OneCallerLeavesRoom", nil,
		},
		{
			"the demo waits for a body for ever", "demo/bluecone/web/guard.go",
			"time.Now().Add(conf.bodyTime)", "time.Time{}",
			"./demo/bluecone/web", "ASlowBody", nil,
		},
		{
			"a browser changes the demo without a session", "demo/bluecone/web/guard.go",
			"(conf.Session == nil || !conf.Session(r))", "false",
			"./demo/bluecone", "BrowserNeedsTheSession", nil,
		},
		{
			"the demo answers to any name", "demo/httpserver/serve.go",
			"net.ParseIP(host) == nil", "false",
			"./demo/bluecone", "NamesOfOthers", nil,
		},
		{
			"stored JSON is walked however deep it is", "ops/redact.go",
			"if len(w.open) > maxDepth {", "if len(w.open) < 0 {",
			"./ops", "DeepDocument", nil,
		},
		{
			"personal fields are compared by case", "internal/personal/personal.go",
			"least = min(least, next)", "least = min(least, r)",
			attacked, "PersonalFields", nil,
		},
		{
			"a retry undoes a skip", "ops/write.go",
			"Consumers: consumers, KeepSkipped: true}", "Consumers: consumers}",
			attacked, "RetryUndoesNoSkip", nil,
		},
		{
			"ids stand in commands as they are", "internal/text/shell.go",
			"case word.MatchString(s):", "case true:",
			attacked + " ./internal/text", "RemediesCanBePasted|AnyValueForOneWord", nil,
		},
		{
			"searches find what belongs to other tenants", "ops/leg.go",
			"if caller := CallerOf(ctx); caller.limited() {", "if caller := CallerOf(ctx); false {",
			"./ops ./console", "AnotherTenant",
			[]edit{{"ops/search.go", "p.Rows = slices.DeleteFunc(p.Rows, func(e Event) bool { return !caller.Sees(e.TenantID) })", "_ = caller"}},
		},
		{
			"who is limited to a tenant changes events of others", "ops/caller.go",
			"case !c.Sees(tenant):", "case !c.Sees(tenant) && false:",
			"./ops ./console", "AnotherTenant", nil,
		},
		{
			"a bulk operation goes further than who started it", "ops/bulk_run.go",
			"Tenants: w.b.Tenants}", "}",
			"./ops", "AnotherTenant", nil,
		},
		{
			"what is critical waits its turn among warnings", "internal/store/alertmessages.go",
			"ORDER BY CASE WHEN m.level = 'CRITICAL' THEN 0 ELSE 1 END, m.id", "ORDER BY m.id",
			"./alert", "Flood", nil,
		},
		{
			"a database that runs texts as SQL is used", "internal/dialect/quoting.go",
			`if value == "off" {`, `if value == "" {`,
			engine, "KeepTextsApart", nil,
		},
		{
			"claims are not bounded by bytes", "internal/store/events.go",
			"ok := isFirst || total <= most", "ok := isFirst || total >= 0",
			attacked, "ClaimsAreBounded", nil,
		},
		{
			"payloads of retries are not bounded by bytes", "internal/engine/flow/bytes.go",
			"fits := b.Fits(bytes)", "fits := true",
			rooms + " " + engine, "RetriesAreBounded|PayloadRoom",
			[]edit{{"internal/engine/flow/bytes.go", "b.line[0] != user && b.used+bytes > b.limit/2", "false"}},
		},
		{
			"nobody tells a consumer that there is room for its retries", "internal/engine/delivery/room.go",
			"r.bytes.Give(bytes)\n\tr.mu.Unlock()\n\tr.wake()", "r.bytes.Give(bytes)\n\tr.mu.Unlock()",
			rooms, "PayloadRoom", nil,
		},
		{
			"an alert that was reminded less than once ends every look", "alert/state.go",
			"a.Reminders = min(max(a.Reminders, 0), mostReminders) + 1", "a.Reminders = min(a.Reminders, mostReminders) + 1",
			"./alert", "MalformedRows", nil,
		},
		{
			"a malformed counter keeps back what comes after it", "internal/store/alerts.go",
			`" = CASE WHEN " + column + " BETWEEN 0 AND 1000000000 THEN "`, `" = CASE WHEN " + column + " IS NOT NULL THEN "`,
			"./alert", "MalformedRows", nil,
		},
		{
			"a bulk operation that cannot be taken keeps back the others", "ops/bulk_run.go",
			"errs = append(errs, err)\n\t\t\tcontinue", "return false, err",
			"./ops", "MalformedRowsKeep", nil,
		},
		{
			"a bulk operation goes on at any pace", "ops/bulk_manage.go",
			"&& len(checkPace(asked.Rate, asked.Spread)) > 0) {", "&& len(checkPace(asked.Rate, asked.Spread)) < 0) {",
			"./ops", "MalformedRowsKeep", nil,
		},
		{
			"a webhook is taken however old it is", "alert/verify.go",
			"if signed < now.Unix()-tolerance || signed > now.Unix()+tolerance {", "if signed > now.Unix()+tolerance {",
			"./alert", "VerifyWebhook", nil,
		},
		{
			"the API of the console does what it understands of a body", "console/body.go",
			"!slices.Contains(takes, name)", "!slices.Contains(takes, name) && false",
			"./console", "APIRefusesUnknownFields", nil,
		},
		{
			"what follows a body of the console's API is lost", "console/body.go",
			"if err := ended(dec); err != nil {", "if err := ended(dec); err != nil && false {",
			"./console", "APIRefusesUnknownFields", nil,
		},
		{
			"passwords may be guessed without end", "console/guess.go",
			"return w.count >= maxWrong && now.Before(w.until)", "return w.count < 0",
			"./console", "GuessingPasswords", nil,
		},
		{
			"a part of a password is taken for a host", "dburl/dburl.go",
			`return end >= 0 && strings.Contains(rest[end:], "@")`, "return end < -1",
			"./dburl", "NotEscaped", nil,
		},
		{
			"the id of an operation stands for any", "console/once.go",
			"if a.content != content {", "if false {",
			"./console", "BoundToItsContent", nil,
		},
		{
			"the doctor's statements take no turn", "ops/doctor.go",
			"ctx, done, err := e.access.turn(ctx)", "done, err := func() {}, error(nil)",
			"./ops", "TakesTheTurnOfOneReader", nil,
		},
		{
			"the doctor's page shows what the database answered", "ops/doctor.go",
			"report[i] = f.Logged(reference)", "report[i] = f",
			"./ops", "ShowsNoErrorsOfTheDatabase", nil,
		},
		{
			"a list of event types is read however long it is", "internal/store/announce.go",
			`fmt.Sprintf("CASE WHEN %s <= %d THEN`, `fmt.Sprintf("CASE WHEN %s <> -%d THEN`,
			engine, "MalformedRows", nil,
		},
		{
			"attempts at no route use up the audit of refusals", "console/gate.go",
			`if _, pattern := c.mux.Handler(r2); pattern == "" {`, "if _, pattern := c.mux.Handler(r2); pattern == \"\" && " +
				"r.Method == http.MethodGet {",
			"./console", "AttemptsAtNoRoute", nil,
		},
		{
			"an attempt at another tenant is not audited", "console/problem.go",
			" || errors.Is(err, ops.ErrOtherTenant)", " || false && errors.Is(err, ops.ErrOtherTenant)",
			"./console", "AttemptsAtAnotherTenant", nil,
		},
		{
			"a user's tenants are forgotten", "console/basic.go",
			", Tenants: slices.Clone(u.Tenants)", "",
			"./console", "UsersHaveTheirTenants", nil,
		},
	}
}
