package web

import "time"

// docs/security.md lists these limits with their reasons.
const (
	maxBody  = 1 << 20
	bodyTime = 30 * time.Second
)
