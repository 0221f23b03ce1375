package view

import "github.com/bluecone-go/bluecone/internal/dialect"

// A run that has succeeded, or that was counted before it started, is counted and not in the history; one that is under way,
// or that the handler skipped, may be.
const (
	runsCounted = "CASE WHEN status = 'SUCCESS' OR (status = 'PROCESSING' AND started = 2) THEN 1 ELSE 0 END"
	runsPerhaps = "CASE WHEN status IN ('SUCCESS', 'PROCESSING', 'SKIPPED') THEN 1 ELSE 0 END"
)

// countedAttempts are the deliveries with how many counted attempts that did not succeed are in the history, at least and at
// most, and how many rows of it are kept. A retry or replay by an operator begins a new count. Where the audit log does not
// tell whether it reached a delivery, because it names several consumers, and in the very moment of one, either count will do.
const countedAttempts = "SELECT l.id, l.event_id, l.consumer_name, l.status, l.attempts, l.started, " +
	"COUNT(CASE WHEN a.outcome <> 'PENDING' AND (r.perhaps_at IS NULL OR a.created_at > r.perhaps_at) THEN 1 END) AS least, " +
	"COUNT(CASE WHEN a.outcome <> 'PENDING' AND (r.certain_at IS NULL OR a.created_at >= r.certain_at) THEN 1 END) AS most, " +
	"COUNT(a.id) AS kept " +
	"FROM " + logL + " LEFT JOIN bc_delivery_attempt a ON a.event_id = l.event_id AND a.consumer_name = l.consumer_name " +
	"LEFT JOIN (SELECT l.id, MAX(u.created_at) AS perhaps_at, MAX(CASE WHEN u.details = l.consumer_name THEN u.created_at END) AS " +
	"certain_at FROM " + logL +
	" JOIN bc_audit_log u ON u.action IN ('retry', 'replay') AND u.target = l.event_id AND (u.details = l.consumer_name OR " +
	"COALESCE(u.details, '') = '' OR u.details LIKE '%,%' OR u.details LIKE '%:%') GROUP BY l.id) AS r ON r.id = l.id " +
	"GROUP BY l.id, l.event_id, l.consumer_name, l.status, l.attempts, l.started"

// UncountedAttempts asks for deliveries whose history has an attempt that they do not count.
func UncountedAttempts() Question {
	return Question{query: "SELECT event_id, consumer_name AS consumer, CONCAT('an attempt is not counted: ', attempts, ' of at least ', " +
		// 0 of 0 is a row written by hand
		"least + " + runsCounted + ") AS says FROM (" + countedAttempts + ") AS c WHERE attempts < least + " + runsCounted +
		" AND NOT (attempts = 0 AND most = 0)"}
}

// trimmed is from how many rows on a history may have lost some: the first and last ten of a delivery are kept.
const trimmed = "20"

// UnexplainedAttempts asks for deliveries that count an attempt that their history does not explain.
func UnexplainedAttempts() Question {
	return Question{query: "SELECT event_id, consumer_name AS consumer, CONCAT('an attempt is counted that nobody made: ', attempts, " +
		"' are counted, and ', most + " + runsPerhaps + ", ' were made') AS says FROM (" + countedAttempts + ") AS c WHERE kept < " + trimmed +
		" AND attempts > most + " + runsPerhaps}
}

// AttemptsWithoutDelivery asks for attempts at an event that has no delivery.
func AttemptsWithoutDelivery() Question {
	return Question{query: "SELECT a.event_id, a.consumer_name AS consumer, 'an attempt without a delivery' AS says " +
		"FROM bc_delivery_attempt a JOIN " + eventsE + " ON e.event_id = a.event_id " +
		"LEFT JOIN " + logL + " ON l.event_id = a.event_id AND l.consumer_name = a.consumer_name WHERE l.id IS NULL"}
}

// shortestPause is half of 2^n seconds in microseconds; of 2^9 seconds it is less than five minutes.
const shortestPause = "CASE WHEN attempt < 10 THEN CASE attempt WHEN 1 THEN 1000000 WHEN 2 THEN 2000000 WHEN 3 THEN 4000000 " +
	"WHEN 4 THEN 8000000 WHEN 5 THEN 16000000 WHEN 6 THEN 32000000 WHEN 7 THEN 64000000 WHEN 8 THEN 128000000 ELSE 256000000 END " +
	"ELSE 300000000 END"

// EarlyAttempts asks for attempts that followed a failed one too early: before half of 2^n seconds, and at most 5 min, after the
// attempt n, unless an operator came between.
func EarlyAttempts(d dialect.Dialect) Question {
	pause := d.Micros("next_at") + " - " + d.Micros("created_at")
	return Question{query: "SELECT event_id, consumer_name AS consumer, 'tried again too early' AS says FROM (" +
		"SELECT a.event_id, a.consumer_name, a.attempt, a.outcome, a.created_at, LEAD(a.created_at) OVER (PARTITION BY a.event_id, " +
		"a.consumer_name ORDER BY a.id) AS next_at FROM bc_delivery_attempt a) AS p " +
		"WHERE outcome = 'FAILED' AND next_at IS NOT NULL AND " + pause + " < " + shortestPause + " - 10000 " +
		"AND NOT EXISTS (SELECT 1 FROM bc_audit_log r WHERE r.action IN ('retry', 'replay') AND r.target = p.event_id AND r.created_at >= " +
		"p.created_at AND r.created_at <= p.next_at)"}
}
