package ledger

import "time"

// Every limit of this package. docs/security.md says why each of them is what it is.
const (
	// maxBody is the largest request that is read, in bytes.
	maxBody = 16 << 20
	// maxAnswer is how many bytes of payloads one answer to Fetch has, but for one event, which may be larger.
	maxAnswer = 8 << 20
	// maxEvents is how many events one Publish takes.
	maxEvents = 1000
	// maxMetadata is how many entries the metadata of an event have: more are longer than the outbox takes.
	maxMetadata = 2100
	// maxFetch is how many deliveries one Fetch takes, and how many acks one Ack.
	maxFetch = 500
	// maxWait is how long a Fetch may wait.
	maxWait = 60 * time.Second
	// maxTypes is how many event types a consumer may name.
	maxTypes = 200
	// maxName is the longest name of a consumer or event type, in bytes.
	maxName = 128
	// maxResult is the largest result of a delivery, in bytes.
	maxResult = 64 << 10
	// maxResultDepth is how deep arrays and objects of a result may be nested.
	maxResultDepth = 100
	// maxLease is the longest lease of a delivery.
	maxLease = 60 * time.Second
	// maxAttempts is after how many failed attempts a delivery is DEAD.
	maxAttempts = 25
	// minTTL and maxTTL are the shortest and the longest time to live of a reservation.
	minTTL, maxTTL = 1 * time.Second, 24 * time.Hour
	// maxCheckURL is the longest checkUrl of an event, in bytes.
	maxCheckURL = 2048
	// minToken is the least length of a bearer token, in bytes.
	minToken = 8
	// defaultRate is how many calls a second a caller may make of one instance, unless [Caller.Rate] says otherwise.
	defaultRate = 1000
	// burstTime is for how long a caller who has made no calls may save them up.
	burstTime = 5 * time.Second
	// maxUnderWay is how many calls of one caller may be under way in one instance, those that wait in Fetch among them.
	maxUnderWay = 5000
	// maxCallers is how many callers are known before those who call no more are forgotten.
	maxCallers = 10_000
)
