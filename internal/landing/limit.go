package landing

// Limits of what an inbox lands, beside those of Save.
const (
	// maxSchemaVersion is the newest schema version.
	maxSchemaVersion = 1_000_000
	// maxTraceID is the longest trace id that is kept, in bytes.
	maxTraceID = 64
)
