package ops

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/text"
)

// deadLook is how many of a consumer's newest DEAD, and FAILED, deliveries are grouped.
const deadLook = 2000

// fingerprint names a group of deliveries that failed for the same reason: masked is [text.Mask] of
// what they say.
func fingerprint(consumer, eventType, masked string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(masked)) // never fails
	return fmt.Sprintf("%s:%s:%016x", consumer, eventType, h.Sum64())
}

// parseFingerprint reads what a fingerprint says about its group.
func parseFingerprint(s string) (consumer, eventType string, ok bool) {
	parts := strings.Split(s, ":")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || len(parts[2]) != 16 {
		return "", "", false
	}
	return parts[0], parts[1], true
}

// Dead lists failed and dead deliveries, grouped by what went wrong, the largest group first.
func (o *Ops) Dead(ctx context.Context) ([]DeadGroup, error) {
	return share(ctx, o.access, "dead", nil, o.dead)
}

func (o *Ops) dead(ctx context.Context) ([]DeadGroup, error) {
	names, err := o.consumerNames(ctx)
	if err != nil {
		return nil, err
	}
	groups := make(map[string]*DeadGroup)
	for _, name := range names {
		for _, status := range []consumelog.Status{consumelog.Dead, consumelog.Failed} {
			if err := o.group(ctx, groups, name, status); err != nil {
				return nil, fmt.Errorf("ops: group the deliveries of %s: %w", name, err)
			}
			if len(groups) > 2*maxGroups {
				groups = largest(groups)
			}
		}
	}
	return sorted(groups), nil
}

// sorted lists the groups, the largest first, and no more than are kept.
func sorted(groups map[string]*DeadGroup) []DeadGroup {
	out := make([]DeadGroup, 0, len(groups))
	for _, g := range groups {
		out = append(out, *g)
	}
	slices.SortFunc(out, func(a, b DeadGroup) int {
		if n := (b.Dead + b.Failed) - (a.Dead + a.Failed); n != 0 {
			return int(n)
		}
		return strings.Compare(a.Fingerprint, b.Fingerprint)
	})
	return out[:min(len(out), maxGroups)]
}

func largest(groups map[string]*DeadGroup) map[string]*DeadGroup {
	kept := make(map[string]*DeadGroup, maxGroups)
	for _, g := range sorted(groups) {
		kept[g.Fingerprint] = &g
	}
	return kept
}

// group adds the deliveries of one consumer in one state to their groups.
func (o *Ops) group(ctx context.Context, groups map[string]*DeadGroup, consumer string, status consumelog.Status) error {
	from := logTable
	if o.d.Name == "mysql" {
		from += " FORCE INDEX (idx_consumer_due)"
	}
	n, touched, caller := 0, make(map[string]bool), CallerOf(ctx)
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var eventID, eventType, message string
		var at, tenant int64
		if err := rows.Scan(&eventID, &eventType, &message, &at, &tenant); err != nil {
			return err
		}
		if n++; !caller.Sees(tenant) {
			return nil
		}
		message = shown(message, listText)
		masked := text.Mask(message)
		fp, when := fingerprint(consumer, eventType, masked), instant(at)
		g := groups[fp]
		if g == nil {
			g = &DeadGroup{Fingerprint: fp, Consumer: consumer, EventType: eventType, Error: masked, Sample: message, SampleEvent: eventID, First: when, Last: when}
			groups[fp] = g
		}
		if touched[fp] = true; status == consumelog.Dead {
			g.Dead++
		} else {
			g.Failed++
		}
		if when.Before(g.First) {
			g.First = when
		}
		if when.After(g.Last) {
			g.Last, g.Sample, g.SampleEvent = when, message, eventID
		}
		return nil
	}, "SELECT "+o.name("event_id")+", "+o.name("event_type")+", COALESCE("+cut("error_message", listText)+", ''), "+o.d.Micros("updated_at")+", COALESCE(tenant_id, 0) FROM "+from+
		" WHERE consumer_name = ? AND status = ? AND status <> 'SUCCESS' ORDER BY next_retry_at DESC, id DESC LIMIT ?", consumer, string(status), deadLook)
	if n == deadLook {
		for fp := range touched {
			groups[fp].More = true
		}
	}
	return err
}

// consumerNames lists every name under which deliveries may wait: consumers and their replays, and
// consumers that nobody announces any more, by jumping from name to name in the
// index.
func (o *Ops) consumerNames(ctx context.Context) ([]string, error) {
	return share(ctx, o.access, "names", nil, func(ctx context.Context) ([]string, error) {
		const most = 500
		var names []string
		for last := ""; len(names) < most; {
			found, err := o.texts(ctx, o.d.NextConsumer(logTable), last)
			if err != nil {
				return nil, fmt.Errorf("ops: read consumer names: %w", err)
			}
			if len(found) == 0 {
				break
			}
			last = found[0]
			names = append(names, last)
		}
		return names, nil
	})
}
