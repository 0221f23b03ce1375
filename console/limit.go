package console

import "time"

// Every limit of this package. docs/security.md says why each of them is what it is.
const (
	// maxBody is the largest request that is read, in bytes: more than the largest payload.
	maxBody = 1 << 20
	// bodyTime is how long the body of a request may take to arrive.
	bodyTime = 30 * time.Second
	// maxSelected is how many events one request may name; for more there are bulk operations.
	maxSelected = 500
	// maxOperationID is the longest id that a form may have for its operation, in bytes.
	maxOperationID = 64
	// remembered is how many operations are kept in mind, so that a form that is sent twice acts once.
	remembered = 1000
	// pageSize is how many rows a page shows.
	pageSize = 50
)
