package ops

import "time"

// Every limit of this package. docs/security.md says why each of them is what it is.
const (
	// maxDepth is how deep arrays and objects may be nested in a document in which something may have to be hidden. Deeper
	// ones are hidden as a whole.
	maxDepth = 100
	// listText is how much of a text column is read for a list, in characters: at most 2 KB.
	listText = 500
	// pageText is how much of it is read for the page of one event: all of an error that this library has written.
	pageText = 2000
	// nameText is how much is read of a name, key or id: SQLite keeps any length.
	nameText = 255
	// metadataText is how much is read of the metadata of an event, in characters: longer ones are not shown.
	metadataText = 8192
	// requestText is how much is read of what a bulk operation is to do, with the tenants that it is limited to.
	requestText = 1 << 16
	// payloadText is how much of a payload is revealed, in characters: of a longer one, nothing.
	payloadText = 1 << 20
	// readBudget is how many bytes one page reads of deliveries, and of attempts: what is beyond it is not shown.
	readBudget = 4 << 20
	// registryBudget is how many bytes are read of the registry of consumers.
	registryBudget = 16 << 20
	// maxNames is how many event types, and how many instances, are read.
	maxNames = 2000
	// maxReservations is how many reservations that wait for their producers are listed, and as many that have changed last.
	maxReservations = 500
	// maxCandidates is how many events a search looks for that may have been saved under a key.
	maxCandidates = 2000
	// mostOfKey is how many events of one idempotency key, and as many that a consumer has recorded it for, a search finds: the newest.
	mostOfKey = 500
	// maxGroups is how many groups of dead letters are kept, the largest.
	maxGroups = 1000
	// maxWaiting is how many statements of readers may wait for their turn.
	maxWaiting = 256
	// maxWaitingOf is how many of them may be one caller's.
	maxWaitingOf = 64
	// maxAnswers is how many answers are kept for those who ask the same within a second.
	maxAnswers = 32
	// shareFor is how long identical reads share one answer.
	shareFor = time.Second
	// maxLimit is the most rows of a page.
	maxLimit = 500
	// defaultLimit is how many rows a page has if nobody asks for another number.
	defaultLimit = 50
	// longest is the most bytes of any name, id or key in the tables, and so of one that somebody asks for.
	longest = 255
	// storyEvents is the most events of a story.
	storyEvents = 200
	// defaultQueries is how many statements of readers are under way at a time, unless [Config.Queries] says otherwise.
	defaultQueries = 2
	// defaultTimeout ends a statement of a reader, unless [Config.Timeout] says otherwise.
	defaultTimeout = 2 * time.Second
	// lookAt is the most rows that one search statement looks at.
	lookAt = 20_000
	// countLooks is how many such statements a count takes before it gives up.
	countLooks = 10
	// CountCap is where counting stops.
	CountCap = 10_000
	// deadLook is how many of a consumer's newest DEAD, and FAILED, deliveries are grouped.
	deadLook = 2000
	// deadRows is how many deliveries of all consumers are grouped: with many consumers that fail, fewer of each.
	deadRows = 100_000
	// deadLeast is how many of each they are at least.
	deadLeast = 100
)
