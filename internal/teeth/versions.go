package main

// ofVersions are those of schema versions that not every running instance knows.
func ofVersions() []sabotage {
	return []sabotage{
		{
			"an old instance runs what is newer than its code", "internal/handler/consumer.go",
			"return h != nil && (h.Raw || version <= h.Version)", "return h != nil",
			engineAndLives, "Version|OldInstanceLeaves|SimulatedLives", nil,
		},
		{
			"an old instance runs a newer version from the log", "internal/engine/delivery/refill.go",
			"case !q.c.Knows(d.Event.Type, d.Event.SchemaVersion):", "case d.Event.Type == \"\":",
			engine, "OldInstanceLeaves", nil,
		},
		{
			"nobody looks for what old instances have left", "internal/engine/claims.go",
			"if err := c.lanes.TakeLeft(ctx, isExhaustive); err != nil {", "if err := ctx.Err(); err != nil {",
			engineAndLives, "Version|TwoReleases|SimulatedLives", nil,
		},
		{
			"old instances claim what they have left again and again", "internal/store/putback.go",
			"due, args = l.d.Never, []any{string(how.as), startedIf(how.suspect), owner}",
			"due, args = l.d.Now, []any{string(how.as), startedIf(how.suspect), owner}",
			engine, "Version|OldInstanceLeaves|OperatorDecides",
			[]edit{{"internal/store/spill.go", "due, args = s.d.Never,", "due, args = s.d.Now,"}},
		},
		{
			"what ends in an aggregate makes due what was left to others", "internal/store/wake.go",
			`AND l.outbox_id > ? AND l.next_retry_at < "+o.d.Never+" ORDER`, `AND l.outbox_id > ? ORDER`,
			engine, "WakesNothing",
			[]edit{{"internal/store/wake.go", `" AND l.next_retry_at < " + o.d.Never + " THEN 1`, `" THEN 1`}},
		},
	}
}
