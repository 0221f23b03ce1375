package alert

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Every limit of this package. docs/security.md says why each of them is what it is.
const (
	// perTurn is how many messages a sink gets at a look: DingTalk takes 20 a minute.
	perTurn = 10
	// maxPerRule is how many conditions of one rule are alerts of their own; the others are one more.
	maxPerRule = 20
	// mostAnswer is how much of a sink's answer is read, in bytes.
	mostAnswer = 64 << 10
	// mostReminders is where the count of reminders stops, of which only the first twenty make a pause longer.
	mostReminders = 1000
	// longestName is how many characters are read of a name: SQLite keeps any length.
	longestName = 255
	// countCap is where counting stops: a count of one more means "more than that".
	countCap = 10_000
	// WebhookTolerance is how far the time at which a message was signed may be from the receiver's clock, before or after it.
	WebhookTolerance = 5 * time.Minute
)

// urgent puts conditions in the order in which they are recorded and told, the critical ones first, and makes one of all
// those of a rule beyond the oldest maxPerRule: rows that anybody wrote must not hide what is critical.
func urgent(found []signal) []signal {
	slices.SortStableFunc(found, func(a, b signal) int {
		first := func(s signal) int { return map[bool]int{true: 0, false: 1}[ruleOf(s.rule).Level == Critical] }
		return cmp.Or(cmp.Compare(first(a), first(b)), cmp.Compare(a.rule, b.rule), cmp.Compare(a.since, b.since),
			cmp.Compare(a.about(), b.about()))
	})
	var out []signal
	for len(found) > 0 {
		n := slices.IndexFunc(found, func(s signal) bool { return s.rule != found[0].rule })
		if n < 0 {
			n = len(found)
		}
		of := found[:n]
		found = found[n:]
		if len(of) > maxPerRule+1 { // one more is told rather than counted
			rest := of[maxPerRule:]
			of = append(of[:maxPerRule:maxPerRule], signal{
				rule: rest[0].rule, subject: "others", count: int64(len(rest)), since: rest[0].since,
				says: fmt.Sprintf("and %d more of the same rule, of other consumers or event types", len(rest)),
			})
		}
		out = append(out, of...)
	}
	return out
}
