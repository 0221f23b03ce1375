package handler

import "time"

// docs/security.md says why each of these is what it is.
const (
	// MaxBatch is the most events in one transaction.
	MaxBatch       = 500
	defaultQueue   = 1000
	defaultTimeout = 30 * time.Second
	maxAge         = 24 * time.Hour
	maxAgeExternal = 15 * 24 * time.Hour

	externalAttempts   = 25
	backoffCap         = 10 * time.Minute
	backoffCapExternal = 24 * time.Hour
)
