package view

import "github.com/uptrace/bun"

// Effects is a table of a test in which its handlers note each effect: columns id, consumer, event_id, aggregate, seq.
type Effects string

// Twice asks for more than one effect of an event by a consumer.
func (t Effects) Twice() Question {
	return Question{query: "SELECT x.event_id, x.consumer, 'more than one effect' AS says FROM " + string(t) +
		" x GROUP BY x.event_id, x.consumer HAVING COUNT(*) > 1"}
}

// WithoutSuccess asks for effects without a delivery that has succeeded, in the log or its archive: in one statement, so that
// both sides are of one moment.
func (t Effects) WithoutSuccess() Question {
	return Question{query: "SELECT x.event_id, x.consumer, 'an effect without SUCCESS' AS says FROM " + string(t) +
		" x LEFT JOIN " + logL + " ON l.event_id = x.event_id AND l.consumer_name = x.consumer AND l.status = 'SUCCESS' WHERE l.id IS NULL" +
		" AND NOT EXISTS (SELECT 1 FROM " + string(DeliveriesArchive) +
		" a WHERE a.event_id = x.event_id AND a.consumer_name = x.consumer AND a.status = 'SUCCESS')"}
}

// Missing asks for deliveries in a table, the log or its archive, that have succeeded without an effect.
func (t Effects) Missing(in Table) Question {
	return Question{query: "SELECT l.event_id, l.consumer_name AS consumer, 'SUCCESS without an effect' AS says FROM " + string(in) +
		" l LEFT JOIN " + string(t) +
		" x ON x.event_id = l.event_id AND x.consumer = l.consumer_name WHERE l.status = 'SUCCESS' AND x.event_id IS NULL"}
}

// OutOfOrder asks for effects that came after one that is behind them in their aggregate, but for consumers to whom the order
// does not matter.
func (t Effects) OutOfOrder(unordered []string) Question {
	return Question{"SELECT event_id, consumer, 'an effect out of turn' AS says FROM (SELECT x.event_id, x.consumer, x.seq, LAG(x.seq) OVER " +
		"(PARTITION BY x.consumer, x.aggregate ORDER BY x.id) AS earlier FROM " + string(t) +
		" x WHERE x.consumer NOT IN (?)) AS o WHERE earlier > seq", []any{bun.List(append([]string{""}, unordered...))}}
}
