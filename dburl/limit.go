package dburl

import "time"

// docs/security.md says why each of these is what it is.
const (
	maxConns       = 20
	maxConnsSQLite = 4
	// silence is after what time a server takes its locks from a client that says nothing: a frozen process must not hold
	// them for hours.
	silence = 5 * time.Minute
)
