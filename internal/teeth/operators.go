package main

// ofOperators are the sabotages of what operators do, and of what they are told about work that nobody does.
func ofOperators() []sabotage {
	return []sabotage{
		{
			"what is to be retried later is woken before", "outbox/intervene.go",
			"{To: string(store.Failed), Delay: iv.Delay}", "{To: string(store.Pending), Delay: iv.Delay}",
			engine, "DelayedRetry", nil,
		},
		{
			"a discard that meets a beginning has no kind", "outbox/intervene.go",
			"if errors.Is(err, errBegun) {", "if errors.Is(err, errBegun) && false {",
			engine, "JustBegun", nil,
		},
		{
			"a skip for a reason that is not stored", "bus/answer.go",
			"text.Clean(reason, text.MaxError)", "reason+text.Clean(\"\", 1)",
			engine, "SkipWithoutAReason", nil,
		},
		{
			"deliveries of a type that is gone wait unseen", "internal/store/view/unattended.go",
			"} else if c.takes(w) {", "} else if c.hasTypes {",
			"./ops ./alert ./doctor", "TypeThatIsGone|NobodyWorksOn|FaultsAreFound", nil,
		},
		{
			"replays that nobody runs wait unseen", "internal/store/view/unattended.go",
			"if store.IsReplay(w.consumer) && !of.isRunning {", "if false {",
			"./ops ./alert ./doctor", "ThatNobodyRuns|NobodyWorksOn|FaultsAreFound", nil,
		},
		{
			"backfills that nobody works on wait unseen", "internal/store/view/unattended.go",
			"return append(found, past...), err", "return append(found, past[:0]...), err",
			"./ops ./alert ./doctor", "ThatNobodyGives|NobodyWorksOn|FaultsAreFound", nil,
		},
	}
}
