package doctor

// Every limit of this package: anybody may have written the rows. docs/security.md says why each of them is what it is.
const (
	// mostFindings is how many rows a check names.
	mostFindings = 1000
	// mostConsumers is how many rows of bc_consumer are looked at.
	mostConsumers = 10_000
	// mostTypes is how many bytes of lists of event types are read.
	mostTypes = 16 << 20
	// mostStates is how many states of events are listed.
	mostStates = 100
	// mostCells is how many of the newest rows of each table are looked at for texts in columns of numbers.
	mostCells = 1000
	// longestName is how many characters are read of a name or id: SQLite keeps any length.
	longestName = 255
	// longestPayload is how many characters of a payload are judged.
	longestPayload = 1 << 16
	// most is how many rows a count goes to: nobody needs to know more, and counting more costs.
	most = 1000
)
