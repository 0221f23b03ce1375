package main

// ofUnknownCommits are the sabotages of what follows an error of COMMIT.
func ofUnknownCommits() []sabotage {
	return []sabotage{
		{
			"the end of a run cuts a claim off", "internal/engine/claim/claimer.go",
			"context.WithCancelCause(context.WithoutCancel(ctx))", "context.WithCancelCause(ctx)",
			"./internal/engine/claim", "EndOfTheRun", nil,
		},
		{
			"an error of COMMIT is taken for a failure", "internal/engine/delivery/deliver.go",
			"return nil, r.marks.readBack(ctx, ds, err)", "return nil, err",
			engine, "UnknownCommit", nil,
		},
		{
			"an unknown COMMIT of a batch is read back for its first event only", "internal/engine/delivery/marks.go",
			"m.c.Key, eventIDs(ds))", "m.c.Key, eventIDs(ds)[:1])",
			engine, "UnknownCommitOfABatch", nil,
		},
		{
			"a claim of deliveries whose COMMIT is unknown is forgotten", "internal/engine/claim/fromlog.go",
			"return r, fmt.Errorf(", "return Leased{}, fmt.Errorf(",
			engine, "LeasesLeftByTrouble", nil,
		},
	}
}
