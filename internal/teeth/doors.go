package main

// ofTheDoors are the sabotages of what operators and programs around the engine rest on.
func ofTheDoors() []sabotage {
	return []sabotage{
		{
			"a process whose publisher has ended is ready", "ops/probe.go",
			"case running:", "case running || expected:",
			"./ops", "ReadyIsWhat", nil,
		},
		{
			"each probe looks at the database itself", "ops/probe.go",
			"\tif l := p.look; l != nil {", "\tif l := p.look; l != nil && p.unready {",
			"./ops", "PilesUpNoProbes", nil,
		},
		{
			"a probe shows what the database said", "ops/probe.go",
			`"It does not answer as it should: the log says why."`, `err.Error()`,
			"./ops", "ShowNoSecrets", nil,
		},
		{
			"tables of another release are ready", "ops/probe.go",
			"tables.OK, tables.Says = false, misfit.Table+", "tables.OK, tables.Says = true, misfit.Table+",
			"./ops", "AnotherReleaseAreNotReady", nil,
		},
	}
}
