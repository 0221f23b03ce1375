package main

import "time"

// docs/security.md lists these limits with their reasons.
const (
	sessionFor = 8 * time.Hour
)
