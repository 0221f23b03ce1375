package ops

import (
	"context"
	"database/sql"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/text"
)

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
	queues, err := o.queued(ctx)
	if err != nil {
		return nil, err
	}
	queues = store.In(queues, string(consumelog.Dead), string(consumelog.Failed))
	if len(queues) == 0 {
		return []DeadGroup{}, nil
	}
	each := max(deadLeast, min(deadLook, deadRows/len(queues)))
	columns := o.name("consumer_name") + " AS consumer, status, " + o.name("event_id") + " AS event, " + o.name("event_type") + " AS type, COALESCE(" + cut("error_message", listText) + ", '') AS said, " + o.d.Micros("updated_at") + " AS at, COALESCE(tenant_id, 0) AS tenant"
	part := "SELECT consumer, status, event, type, said, at, tenant FROM (SELECT " + columns + " FROM " + store.OfQueue(o.d) + " ORDER BY next_retry_at DESC, id DESC LIMIT ?) AS t"
	groups := make(map[string]*DeadGroup)
	for query, args := range store.Union(part, queues, max(1, lookAt/each), func(q store.Queue) []any { return []any{q.Consumer, q.Status, each} }) {
		if err := o.group(ctx, groups, each, query, args); err != nil {
			return nil, fmt.Errorf("ops: group the deliveries that have failed: %w", err)
		}
		if len(groups) > 2*maxGroups {
			groups = largest(groups)
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

// failedRow is a delivery that has failed.
type failedRow struct {
	queue            store.Queue
	event, eventType string
	said             string
	at               time.Time
	tenant           int64
}

// group adds the deliveries that a statement lists to their groups; of each queue it lists at most so many.
func (o *Ops) group(ctx context.Context, groups map[string]*DeadGroup, each int, query string, args []any) error {
	looked, touched, caller := make(map[store.Queue]int), make(map[store.Queue]map[string]bool), CallerOf(ctx)
	err := o.rows(ctx, func(rows *sql.Rows) error {
		var r failedRow
		var at int64
		if err := rows.Scan(&r.queue.Consumer, &r.queue.Status, &r.event, &r.eventType, &r.said, &at, &r.tenant); err != nil {
			return err
		}
		if looked[r.queue]++; !caller.Sees(r.tenant) {
			return nil
		}
		r.at = instant(at)
		if touched[r.queue] == nil {
			touched[r.queue] = make(map[string]bool)
		}
		touched[r.queue][addTo(groups, r)] = true
		return nil
	}, query, args...)
	for q, n := range looked {
		if n < each {
			continue
		}
		for fp := range touched[q] {
			groups[fp].More = true
		}
	}
	return err
}

// addTo adds a delivery to its group, and tells which that is.
func addTo(groups map[string]*DeadGroup, r failedRow) (fp string) {
	message := shown(r.said, listText)
	masked := text.Mask(message)
	fp = fingerprint(r.queue.Consumer, r.eventType, masked)
	g := groups[fp]
	if g == nil {
		g = &DeadGroup{Fingerprint: fp, Consumer: r.queue.Consumer, EventType: r.eventType, Error: masked, Sample: message, SampleEvent: r.event, First: r.at, Last: r.at}
		groups[fp] = g
	}
	if r.queue.Status == string(consumelog.Dead) {
		g.Dead++
	} else {
		g.Failed++
	}
	if r.at.Before(g.First) {
		g.First = r.at
	}
	if r.at.After(g.Last) {
		g.Last, g.Sample, g.SampleEvent = r.at, message, r.event
	}
	return fp
}
