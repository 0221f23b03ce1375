package main

// ofFlow are about how much the engine does at a time, and for whom.
func ofFlow() []sabotage {
	return []sabotage{
		{
			"one slow event holds up the other aggregates of its consumer", "bus/lane.go",
			"ln.fullBatch(size), ln.box())", "ln.fullBatch(size), time.Hour)",
			engine, "SlowEventHoldsUp", nil,
		},
		{
			"a slow event counts among the workers that a strained database bears", "internal/engine/flow/workers.go",
			"slow := max(box, slowBatches*w.usual)", "slow := max(box, slowBatches*w.usual) + time.Hour",
			"./internal/engine/flow", "Slow", nil,
		},
	}
}
