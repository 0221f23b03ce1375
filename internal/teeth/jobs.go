package main

// ofTheJobs are the sabotages of jobs, the reaper and the consistency checks.
func ofTheJobs() []sabotage {
	return []sabotage{
		{
			"a check compares keys as Go compares texts", "internal/paging/paging.go",
			`if c.ends[last] || last == "" {`, `if last <= after {`,
			"./consistency", "EveryKindOfKeys", nil,
		},
		{
			"the reaper releases locks of events that wait", "reaper/release.go",
			"case waiting > 0:", "case waiting > 1000:",
			"./reaper", "Release|Dead|HoldsALock", nil,
		},
		{
			"the reaper releases without asking the owner's guard", "reaper/release.go",
			"may, err := t.Owner.Guard(ctx, tx, l.Aggregate())", "may, err := true, error(nil)",
			"./reaper", "Question|PaidOrder", nil,
		},
		{
			"another consumer's failure holds a lock", "internal/store/listing.go",
			` AND l.consumer_name = ?", []any{consumer}`, `", []any(nil)`,
			"./reaper", "OnlyItsOwn", nil,
		},
		{
			"another tenant's events hold a lock", "internal/store/listing.go",
			"COALESCE(e.tenant_id, 0) = ? AND e.status", "? >= 0 AND e.status",
			"./reaper", "OtherTenantsEvents", nil,
		},
		{
			"repairs have no limit", "consistency/check.go",
			"if p.repaired >= s.cfg.MaxRepairs {", "if p.repaired < 0 {",
			"./consistency", "TooMany", nil,
		},
		{
			"each check of a run has a limit of its own", "consistency/check.go",
			"if p.repaired >= s.cfg.MaxRepairs {", "if r.Repaired >= s.cfg.MaxRepairs {",
			"./consistency", "TheLimitOfRepairs", nil,
		},
		{
			"a job goes on after its lease", "internal/schedule/lease.go",
			"func() { cancel(errOver) }", "func() {}",
			"./internal/schedule", "CannotBeRenewed", nil,
		},
		{
			"a renewal that is not answered is the last one", "internal/schedule/lease.go",
			"context.WithTimeout(ctx, r.cfg.Lease/3)", "context.WithCancel(ctx)",
			"./internal/schedule", "SomeOfItsRenewals", nil,
		},
	}
}
