package ops

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/store/view"
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
func (o *Ops) Dead(ctx context.Context) ([]DeadGroup, error) { return o.overviews.dead(ctx) }

func (v *overviews) dead(ctx context.Context) ([]DeadGroup, error) {
	return share(ctx, v.access, "dead", nil, v.readDead)
}

func (v *overviews) readDead(ctx context.Context) ([]DeadGroup, error) {
	queues, err := v.queued(ctx)
	if err != nil {
		return nil, err
	}
	queues = store.In(queues, string(consumelog.Dead), string(consumelog.Failed))
	if len(queues) == 0 {
		return []DeadGroup{}, nil
	}
	each := max(deadLeast, min(deadLook, deadRows/len(queues)))
	groups := make(map[string]*DeadGroup)
	for some := range slices.Chunk(queues, min(max(1, lookAt/each), store.MostParts)) {
		if err := v.group(ctx, groups, some, each); err != nil {
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

// group adds the deliveries of queues to their groups; of each queue it looks at so many.
func (v *overviews) group(ctx context.Context, groups map[string]*DeadGroup, queues []store.Queue, each int) error {
	looked, touched, caller := make(map[store.Queue]int), make(map[store.Queue]map[string]bool), CallerOf(ctx)
	err := view.FailedOf(ctx, v.access.sql, queues, each, listText, func(f view.Failed) {
		if looked[f.Queue]++; !caller.Sees(f.TenantID) {
			return
		}
		if touched[f.Queue] == nil {
			touched[f.Queue] = make(map[string]bool)
		}
		touched[f.Queue][addTo(groups, f)] = true
	})
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
func addTo(groups map[string]*DeadGroup, r view.Failed) (fp string) {
	message := shown(r.Error, listText)
	masked := text.Mask(message)
	fp = fingerprint(r.Consumer, r.EventType, masked)
	g := groups[fp]
	if g == nil {
		g = &DeadGroup{
			Fingerprint: fp, Consumer: r.Consumer, EventType: r.EventType, Error: masked,
			Sample: message, SampleEvent: r.EventID, First: r.At, Last: r.At,
		}
		groups[fp] = g
	}
	if r.Status == string(consumelog.Dead) {
		g.Dead++
	} else {
		g.Failed++
	}
	if r.At.Before(g.First) {
		g.First = r.At
	}
	if r.At.After(g.Last) {
		g.Last, g.Sample, g.SampleEvent = r.At, message, r.EventID
	}
	return fp
}
