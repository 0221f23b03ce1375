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
	// overviewConsumers is how many consumers the overview shows.
	overviewConsumers = 20
	// retryAfter is when somebody who was not let in may ask again, in seconds.
	retryAfter = "1"
	// maxRate is how many requests a second one principal may send, maxBurst how many at once after a while without.
	maxRate, maxBurst = 100, 500
	// maxUnderWay is how many requests of one principal may be under way.
	maxUnderWay = 64
	// maxPrincipals is how many principals are known before those who ask for nothing are forgotten.
	maxPrincipals = 10_000
	// attemptEvery is how often a refused attempt of the same principal at the same route is written into the audit log.
	attemptEvery = time.Minute
	// maxAttempts is how many of them are remembered for a principal: as many rows may be written in that time.
	maxAttempts = 100
	// minPassword is the least length of a user's password, in bytes.
	minPassword = 12
	// maxWrong is how many wrong passwords are looked at for a name from an address within wrongTime.
	maxWrong = 10
	// wrongTime is how long they count, from the first one on.
	wrongTime = time.Minute
	// retryLogin is what Retry-After says to whoever sent too many wrong passwords, in seconds.
	retryLogin = "60"
	// maxGuessed is how many names and addresses are known that sent wrong passwords.
	maxGuessed = 10_000
)
