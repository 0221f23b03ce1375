package main

// ofTheWiring are the sabotages of what the first steps of a user rest on.
func ofTheWiring() []sabotage { //nolint:funlen // a list
	return []sabotage{
		{
			"events with options share their metadata", "outbox/event.go",
			"c.meta = maps.Clone(inner.meta)", "_ = maps.Clone(inner.meta)",
			engine, "EventsWithOptionsShareNothing", nil,
		},
		{
			"a follow-up event loses its tenant", "outbox/event.go",
			"c.tenantID, c.storeID = o.TenantID, o.StoreID", "_ = o",
			engine, "FollowUpEventsInherit", nil,
		},
		{
			"the tenant that the producer names does not count in a handler", "outbox/event.go",
			"case c.hasTenant:", "case c.hasTenant && o.TenantID == 0:",
			engine, "FollowUpEventsInherit", nil,
		},
		{
			"what a batch of several tenants saves loses its tenant", "outbox/event.go",
			"case o.Mixed:", "case o.Mixed && c.hasTenant:",
			engine, "BatchHandlerLosesNoTenant", nil,
		},
		{
			"a batch handler cannot say of which message it speaks", "bus/metadata.go",
			"ctx = origin.WithMessage(", "_ = origin.WithMessage(",
			engine, "BatchHandlerSpeaks", nil,
		},
		{
			"an event that JSON makes {} of is saved", "outbox/event.go",
			"if err := text.CheckFields(reflect.TypeOf(e.Event)); err != nil {",
			"if err := text.CheckFields(reflect.TypeOf(e.Event)); err != " +
				"nil && payload == nil {",
			engine, "OnlyUnexported", nil,
		},
		{
			"a field of an event that JSON makes {} of is saved", "internal/text/fields.go",
			"f.Type, strings.TrimPrefix(path+\".\"+f.Name, \".\"), seen); err != nil {",
			"f.Type, strings.TrimPrefix(path+\".\"+f.Name, \".\"), seen); err != nil && path != \"\" {",
			"./internal/text " + engine, "OnlyUnexported|CheckFields", nil,
		},
		{
			"a handler's event of which JSON makes {} is registered", "bus/on.go",
			"if err := text.CheckFields(t); err != nil {", "if err := text.CheckFields(t); err != nil && t == nil {",
			pure, "WiringMistakes", nil,
		},
		{
			"a delivery is skipped without a reason", "bus/answer.go",
			`if strings.TrimSpace(text.Clean(reason, text.MaxError)) == "" {`, `if strings.TrimSpace(text.Clean(reason, text.MaxError)) == "?" {`,
			engine, "SkipWithoutAReason", nil,
		},
		{
			"a bus of another database is taken", "outbox/publisher.go",
			"if handler.Of(b).WorksIn(ob.db) {", "if handler.Of(b).WorksIn(ob.db) || true {",
			engine, "BusOfAnotherDatabase", nil,
		},
		{
			"a consumer without handlers is taken", "bus/wiring.go",
			"if len(c.EventTypes()) == 0 && !c.refused {", "if len(c.EventTypes()) < 0 && !c.refused {",
			pure, "WiringMistakes", nil,
		},
		{
			"a step of a type that nobody handles is taken", "bus/wiring.go",
			"slices.Concat(b.mistakes, b.withoutHandlers(), b.idleUpcasters())",
			"slices.Concat(b.mistakes, b.withoutHandlers(), " +
				"b.idleUpcasters()[:0])",
			pure, "WiringMistakes", nil,
		},
		{
			"a publisher starts although the wiring has mistakes", "outbox/publisher.go",
			"errors.Join(b.Err(), sameDatabase(ob, b), hasPast(ob, b), cfg.validate(), ob.notify.check(cfg))",
			"errors.Join(sameDatabase(ob, b), cfg.validate())",
			engine, "AllMistakes", nil,
		},
		{
			"what is registered too late is forgotten", "internal/engine/engine.go",
			"if t.isBeat && cfg.Handlers.HasLate() {", "if t.isBeat && cfg.Handlers == nil {",
			engine, "LateRegistration", nil,
		},
		{
			"a runner that is nil is run", "bus/bus.go",
			"return v.Kind() == reflect.Pointer && v.IsNil()", "return false && v.IsNil()",
			pure, "RunRefusesNil", nil,
		},
		{
			"two types can be published under one name", "ops/ops.go",
			"first[e.EventType()] = i", "_ = i",
			"./ops", "ConfigRefuses", nil,
		},
		{
			"a console behind passwords asks nobody for one", "console/gate.go",
			"errors.AsType[*ChallengeError](err); ok {", "errors.AsType[*ChallengeError](err); ok && r == nil {",
			"./console", "BasicAuth", nil,
		},
		{
			"a user's password opens the console for another", "console/basic.go",
			" & subtle.ConstantTimeCompare(p[:], u.password[:])", " | subtle.ConstantTimeCompare(p[:], u.password[:])",
			"./console", "BasicAuth", nil,
		},
		{
			"the key of an event is not stored", "internal/store/everyevent.go",
			"args = append(args, orNull(e.Key))", `args = append(args, orNull(e.Key[:0]))`,
			"./ops", "KeyIsFound", nil,
		},
		{
			"the archive loses the keys of events", "internal/store/removal.go",
			`sent_at, trace_id, event_key"`, `sent_at, trace_id"`,
			"./ops", "KeyIsFound", nil,
		},
		{
			"time that passes in a test does not reach delayed events", "bustest/clock.go",
			`[]string{"created_at", "next_retry_at", "sent_at"}`, `[]string{"created_at", "sent_at"}`,
			"./bustest", "Advance", nil,
		},
		{
			"what a test sees of a saved event is not upcast", "bus/on.go",
			"payload, err := b.all.Upcast(env.Type, env.SchemaVersion, handler.VersionOf(e), env.Data)", "payload, err := env.Data, error(nil)",
			"./bustest", "SavedIsComplete", nil,
		},
		{
			"databases of tests are left behind", "bustest/newdb.go",
			`drop := "DROP DATABASE IF EXISTS " + name`, `drop := "DROP DATABASE IF EXISTS x" + name`,
			"./bustest", "NewDB", nil,
		},
	}
}
