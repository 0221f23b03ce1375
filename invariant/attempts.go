package invariant

// attempts are the questions about what is counted and what is in the history of attempts. A retry or
// replay by an operator begins a new count. Where the audit log does not tell whether it reached a delivery,
// because it names several consumers, and in the very moment of one, either count will do.
func (c *checker) attempts() []question {
	const truthful = "I10 attempts are truthful"
	retries := "SELECT l.id, MAX(u.created_at) AS perhaps_at, MAX(CASE WHEN u.details = l.consumer_name THEN u.created_at END) AS " +
		"certain_at FROM bc_event_consume_log l " +
		"JOIN bc_audit_log u ON u.action IN ('retry', 'replay') AND u.target = l.event_id AND (u.details = l.consumer_name OR " +
		"COALESCE(u.details, '') = '' OR u.details LIKE '%,%' OR u.details LIKE '%:%') GROUP BY l.id"
	// least and most: how many counted attempts that did not succeed are in the history.
	counted := "SELECT l.id, l.event_id, l.consumer_name, l.status, l.attempts, l.started, " +
		"COUNT(CASE WHEN a.outcome <> 'PENDING' AND (r.perhaps_at IS NULL OR a.created_at > r.perhaps_at) THEN 1 END) AS least, " +
		"COUNT(CASE WHEN a.outcome <> 'PENDING' AND (r.certain_at IS NULL OR a.created_at >= r.certain_at) THEN 1 END) AS most, COUNT(a.id) " +
		"AS kept " +
		"FROM bc_event_consume_log l LEFT JOIN bc_delivery_attempt a ON a.event_id = l.event_id AND a.consumer_name = l.consumer_name " +
		"LEFT JOIN (" + retries + ") AS r ON r.id = l.id GROUP BY l.id, l.event_id, l.consumer_name, l.status, l.attempts, l.started"
	// a run that has succeeded, or that was counted before it started, is counted and not in the history; one that is
	// under way, or that the handler skipped, may be.
	running := "CASE WHEN status = 'SUCCESS' OR (status = 'PROCESSING' AND started = 2) THEN 1 ELSE 0 END"
	perhaps := "CASE WHEN status IN ('SUCCESS', 'PROCESSING', 'SKIPPED') THEN 1 ELSE 0 END"
	return []question{
		{
			// nothing in the history that the delivery does not count
			invariant: truthful,
			// a row written by hand
			query: "SELECT event_id, consumer_name AS consumer, CONCAT('an attempt is not counted: ', attempts, ' of at least ', least + " +
				running + ") AS says FROM (" + counted + ") AS c WHERE attempts < least + " + running + " AND NOT (attempts = 0 AND most = 0)",
		},
		{
			invariant: truthful, // nothing counted that the history does not explain
			query: "SELECT event_id, consumer_name AS consumer, CONCAT('an attempt is counted that nobody made: ', attempts, ' are counted, " +
				"and ', most + " + perhaps + ", ' were made') AS says FROM (" + counted + ") AS c WHERE kept < " + trimmed + " AND attempts > most + " +
				perhaps,
		},
		{
			invariant: truthful, // no history without a delivery
			query: "SELECT a.event_id, a.consumer_name AS consumer, 'an attempt without a delivery' AS says FROM bc_delivery_attempt a JOIN " +
				"bc_outbox_event e ON e.event_id = a.event_id " +
				"LEFT JOIN bc_event_consume_log l ON l.event_id = a.event_id AND l.consumer_name = a.consumer_name WHERE l.id IS NULL",
		},
	}
}

// trimmed is from how many rows on a history may have lost some: the first and last ten of a delivery are kept.
const trimmed = "20"

// pauses are the questions about the time between attempts: at least half of 2^n seconds, at most 5 min,
// after a counted attempt n, unless an operator came between.
func (c *checker) pauses() []question {
	gap := c.d.Micros("next_at") + " - " + c.d.Micros("created_at")
	return []question{{
		invariant: "I10 attempts are truthful",
		query: "SELECT event_id, consumer_name AS consumer, 'tried again too early' AS says FROM (" +
			"SELECT a.event_id, a.consumer_name, a.attempt, a.outcome, a.created_at, LEAD(a.created_at) OVER (PARTITION BY a.event_id, " +
			"a.consumer_name ORDER BY a.id) AS next_at FROM bc_delivery_attempt a) AS p " +
			"WHERE outcome = 'FAILED' AND next_at IS NOT NULL AND " + gap + " < CASE WHEN attempt < 10 THEN " + powers +
			" ELSE 300000000 END - 10000 " +
			"AND NOT EXISTS (SELECT 1 FROM bc_audit_log r WHERE r.action IN ('retry', 'replay') AND r.target = p.event_id AND r.created_at >= " +
			"p.created_at AND r.created_at <= p.next_at)",
	}}
}

// powers is half of 2^n seconds in microseconds; of 2^9 seconds it is less than five minutes.
const powers = "CASE attempt WHEN 1 THEN 1000000 WHEN 2 THEN 2000000 WHEN 3 THEN 4000000 WHEN 4 THEN 8000000 WHEN 5 THEN 16000000 WHEN " +
	"6 THEN 32000000 WHEN 7 THEN 64000000 WHEN 8 THEN 128000000 ELSE 256000000 END"
