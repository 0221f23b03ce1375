package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
)

// dataChecks look at the rows, always by an index or at a bounded number of the newest.
func dataChecks() []check {
	return []check{
		{name: "event states", fine: "all known", look: eventStates},
		{name: "delivery states", fine: "all known", look: deliveryStates},
		{name: "dead letters", fine: "none", look: deadLetters},
		{name: "consumer names", fine: "no two alike", look: consumerNames},
		{name: "absent consumers", fine: "every consumer has been seen lately", look: absentConsumers},
		{name: "schema versions", fine: "no delivery waits for one that no running instance knows", look: unknownVersions},
		{name: "unattended", fine: "no replay, no type and no past waits that nobody works on", look: unattendedWork},
		{name: "malformed rows", fine: "none of types, instances or jobs", look: malformedRows},
		{name: "numbers", fine: "no text stands in a column of numbers", look: noNumbers},
		{name: "reservations", fine: "every producer says in time what became of its events", look: reservations},
		{name: "brokers", fine: "relays and inboxes get through to their brokers, and no setting is known to lose messages", look: brokers},
		{name: "jobs", fine: "none has missed its turns", look: missedTurns},
		{name: "retention", fine: "what was delivered long ago is removed", look: retention},
		{name: "far future", fine: "nothing waits longer than it could have to", look: farFuture},
		{name: "times", fine: "the newest events are of the past", look: futureRows},
		{name: "JSON", fine: "the newest payloads can be read", look: malformed},
	}
}

const versionRemedy = "start an instance of the release that knows it, or skip the deliveries"

const malformedRemedy = "write '[]' into event_types, or delete the row"

const repairRemedy = "look at the rows and correct their status by SQL (docs/schema.md lists the states): " +
	"no operator function changes a row in an unknown one"

// notAll says that there is more than what was looked at, or named.
func notAll(n int) []Finding {
	return warn("not_all", "this check looks at no more than {n} rows, and there are more",
		"fix what it names, or retire consumers that are gone, then run the doctor again", values{"n": strconv.Itoa(n)})
}

// unknown lists what is found and not known; it is empty if there is nothing.
func unknown(found []string, known ...string) string {
	odd := slices.DeleteFunc(found, func(s string) bool { return slices.Contains(known, s) })
	if len(odd) == 0 {
		return ""
	}
	return fmt.Sprintf("%q", odd)
}

func eventStates(ctx context.Context, x *exam) ([]Finding, error) {
	found, err := view.EventStatuses(ctx, x.sql, mostStates)
	odd := unknown(found, "NEW", "SCHEDULED", "DISPATCHING", "FAILED", "DEAD")
	if err != nil || odd == "" {
		return nil, err
	}
	return warn("event_status", "events have the status {status}, which nobody works on", repairRemedy, values{"status": odd}), nil
}

func deliveryStates(ctx context.Context, x *exam) ([]Finding, error) {
	queues, err := store.Queued(ctx, x.db, x.d)
	if err != nil {
		return nil, err
	}
	var all []Finding
	odd := make(map[string][]string)
	for _, q := range queues {
		if !slices.Contains([]string{"PENDING", "PROCESSING", "FAILED", "DEAD", "SKIPPED"}, q.Status) {
			odd[q.Consumer] = append(odd[q.Consumer], q.Status)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(odd)) {
		all = append(all, warn("delivery_status", "deliveries of {consumer} have the status {status}, which nobody works on", repairRemedy,
			values{"consumer": name, "status": fmt.Sprintf("%q", odd[name])})...)
	}
	return all, nil
}

// counted says a number that was counted no further than most; it is empty for 0.
func counted(n int) string {
	switch n {
	case 0:
		return ""
	case most:
		return fmt.Sprintf("%d or more", most)
	}
	return strconv.Itoa(n)
}

func deadLetters(ctx context.Context, x *exam) ([]Finding, error) {
	n, err := view.CountDead(ctx, x.sql, most)
	if err != nil || n == 0 {
		return nil, err
	}
	return warn("dead", "events that are DEAD: {n}", "see why (bluecone dead list, or the page Dead letters), then retry or skip them",
		values{"n": counted(n)}), nil
}

// consumerNames finds names that a person, or a table with another collation, takes for one.
func consumerNames(ctx context.Context, x *exam) ([]Finding, error) {
	names, err := view.ConsumerNames(ctx, x.sql, mostConsumers+1)
	if err != nil {
		return nil, err
	}
	found, err := malformedConsumers(ctx, x)
	seen := make(map[string]string)
	for _, n := range names {
		if other, ok := seen[strings.ToLower(n)]; ok {
			found = append(found, fail("consumers_alike", "the consumers {one} and {other} differ only by case", "give one another "+
				"ConsumerConfig.Key while nothing waits for it, and retire the old one",
				values{"one": strconv.Quote(other), "other": strconv.Quote(n)})...)
		}
		seen[strings.ToLower(n)] = n
	}
	if len(names) > mostConsumers {
		found = append(notAll(mostConsumers), found...)
	}
	return found, err
}

func absentConsumers(ctx context.Context, x *exam) ([]Finding, error) {
	consumers, err := view.AbsentConsumers(ctx, x.sql, store.AbsentAfter, mostFindings+1)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, name := range consumers {
		found = append(found, warn("consumer_absent", "no instance has registered the consumer {consumer} for a day; events wait for it",
			"start an instance with it, or retire it: bluecone consumers retire", values{"consumer": name})...)
	}
	types, err := view.AbsentTypes(ctx, x.sql, store.AbsentAfter, mostFindings+1)
	for _, t := range types {
		found = append(found, warn("type_absent", "no instance has taken {type} for the consumer {consumer} for a day; events of that type "+
			"wait for it", "start an instance that takes it, or retire it: bluecone consumers retire --type",
			values{"consumer": t.Consumer, "type": t.EventType})...)
	}
	return found, err
}

// unknownVersions finds deliveries that instances have left to others, because they did not know the schema version.
func unknownVersions(ctx context.Context, x *exam) ([]Finding, error) {
	const grace = time.Minute
	left, err := store.NewLeft(x.d).Long(ctx, x.db, grace)
	var found []Finding
	for _, l := range left {
		found = append(found, warn("version_unknown", "no running instance knows schema version {version} of {type}: deliveries wait for the "+
			"consumer {consumer}, such as that of {event}", versionRemedy,
			values{"version": strconv.Itoa(l.SchemaVersion), "type": l.EventType, "consumer": l.Consumer, "event": l.EventID})...)
	}
	return found, err
}

// malformedConsumers finds registry rows that the engine does not read. It knows these consumers by
// bc_consumer_type only.
func malformedConsumers(ctx context.Context, x *exam) ([]Finding, error) {
	var found []Finding
	left, more := mostTypes, false
	err := view.EventTypesInRegistry(ctx, x.sql, store.LongestTypes, mostConsumers, func(name, eventTypes string) error {
		if left -= len(eventTypes); left < 0 {
			more = true
			return errEnough
		}
		var types []string
		if name == "" || json.Unmarshal([]byte(eventTypes), &types) != nil {
			found = append(found, warn("consumer_malformed", "the row of the consumer {consumer} in bc_consumer is malformed: its event_types are "+
				"not a JSON list of texts or longer than 64 KiB, or it has no name", malformedRemedy,
				values{"consumer": strconv.Quote(name)})...)
		}
		return nil
	})
	if more {
		return append(notAll(mostConsumers), found...), nil
	}
	return found, err
}

// errEnough ends the reading of rows.
var errEnough = errors.New("enough is read")

// farFuture finds rows whose time nobody can have meant. A parked event waits for minutes, a retry
// ten at most, a lease less; only a producer may ask for more.
func farFuture(ctx context.Context, x *exam) ([]Finding, error) {
	const far = 24 * time.Hour
	n, err := view.CountLeasedBeyond(ctx, x.sql, far, most)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if n != 0 {
		found = warn("leased_long", "{n} events are leased for more than a day", "set their next_retry_at to now", values{"n": counted(n)})
	}
	queues, err := store.Queued(ctx, x.db, x.d)
	queues = store.In(queues, "PENDING", "FAILED", "PROCESSING")
	if err != nil || len(queues) == 0 {
		return found, err
	}
	var names []string
	for _, q := range queues {
		names = append(names, q.Consumer)
	}
	n, err = view.CountWaitingBeyond(ctx, x.sql, slices.Compact(names), far, most)
	if err == nil && n != 0 {
		found = append(found, warn("waits_long", "{n} deliveries wait for more than a day",
			"retry each and name its consumer: bluecone events retry EVENT-ID --consumer NAME; of one that is PROCESSING, "+
				"set next_retry_at to now by SQL", values{"n": counted(n)})...)
	}
	return found, err
}

// futureRows finds events that say they were made in the future: SQL by hand in another time zone.
func futureRows(ctx context.Context, x *exam) ([]Finding, error) {
	n, err := view.CountSavedLater(ctx, x.sql, 5*time.Minute, 1000, most)
	if err != nil || n == 0 {
		return nil, err
	}
	return warn("future", "{n} of the newest events were made in the future", "leave created_at out of SQL written by hand, or write UTC",
		values{"n": counted(n)}), nil
}

// malformed reads the newest payloads as a consumer would, the long ones as far as they are read. They are never shown.
func malformed(ctx context.Context, x *exam) ([]Finding, error) {
	var bad []string
	err := view.NewestPayloads(ctx, x.sql, 200, longestPayload, func(eventID, payload string) error {
		if !json.Valid([]byte(payload)) && (utf8.RuneCountInString(payload) < longestPayload || !beginsJSON(payload)) {
			bad = append(bad, eventID)
		}
		return nil
	})
	if err != nil || len(bad) == 0 {
		return nil, err
	}
	return warn("not_json", "{n} of the newest events have a payload that is not JSON, such as {event}",
		"they become DEAD when they are delivered: fix the payload and retry them, or skip them",
		values{"n": strconv.Itoa(len(bad)), "event": bad[0]}), nil
}

// beginsJSON tells whether a JSON document may begin like this.
func beginsJSON(s string) bool {
	for d := json.NewDecoder(strings.NewReader(s)); ; {
		if _, err := d.Token(); err != nil {
			return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		}
	}
}
