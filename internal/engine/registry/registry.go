// Package registry knows who takes what in the deployment: which consumers instances have registered, for which event types,
// and which of them only other instances can call.
//
// It makes rolling deploys safe: an instance that does not have a registered consumer writes a PENDING row for that consumer, and
// does not mark the event SENT.
package registry

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Consumer is a consumer that some instance of the deployment has registered.
type Consumer struct {
	Key      string
	Types    []string // what any instance has said that it takes
	IsPaused bool
	IsFilled bool // a backfill of it is open
}

// Snapshot is the registry at a moment. It does not change. What is in it stays until an operator retires it: neither time
// nor a jump of the database's clock ends the wait for a consumer.
type Snapshot struct {
	Consumers []Consumer
	Elsewhere map[string][]string // by event type, the keys of the consumers that only other instances can call for it
	Malformed map[string]error    // by key, why what the row of a consumer says of its types cannot be read

	state store.State
}

// Registry is the deployment's registry as one run of a publisher knows it. It is read only when it has changed. It is
// safe for concurrent use.
type Registry struct {
	rows  store.Registry
	local map[string][]string

	mu   sync.Mutex
	last *Snapshot
}

// New returns the registry for an instance that has consumers with these keys, for these event types.
func New(rows store.Registry, local map[string][]string) *Registry {
	return &Registry{rows: rows, local: local}
}

// Read returns the registry as of now, and the time by the database's clock, in microseconds.
func (g *Registry) Read(ctx context.Context, idb bun.IDB) (all *Snapshot, now int64, err error) {
	state, now, err := g.rows.Look(ctx, idb)
	if err != nil {
		return nil, 0, err
	}
	g.mu.Lock()
	all = g.last
	g.mu.Unlock()
	if all != nil && all.state == state {
		return all, now, nil
	}
	rows, err := g.rows.Read(ctx, idb) // after the look: it may be newer than the state says, never older
	if err != nil {
		return nil, 0, err
	}
	all = g.snapshot(rows)
	all.state = state
	g.mu.Lock()
	defer g.mu.Unlock()
	g.last = all
	return all, now, nil
}

// snapshot reads the rows. Of a row that is malformed only what bc_consumer_type says is known.
func (g *Registry) snapshot(rows []store.Registration) *Snapshot {
	all := &Snapshot{Consumers: make([]Consumer, len(rows)), Elsewhere: make(map[string][]string), Malformed: make(map[string]error)}
	for i, row := range rows {
		types, err := TypesIn(row.EventTypes)
		if err != nil {
			all.Malformed[row.Key] = err
		}
		for _, t := range row.Types {
			if !slices.Contains(types, t) {
				types = append(types, t)
			}
		}
		all.Consumers[i] = Consumer{Key: row.Key, Types: types, IsPaused: row.IsPaused, IsFilled: row.IsFilled}
		for _, t := range types {
			if !slices.Contains(g.local[row.Key], t) { // not known here, or known without this type by an older release
				all.Elsewhere[t] = append(all.Elsewhere[t], row.Key)
			}
		}
	}
	return all
}

// TypesIn are the event types in bc_consumer.event_types of a row. What is not a JSON list of texts is an error.
func TypesIn(column string) ([]string, error) {
	var types []string
	if err := json.Unmarshal([]byte(column), &types); err != nil {
		return nil, err
	}
	return slices.Compact(slices.Sorted(slices.Values(types))), nil
}

// Announce writes this instance's consumers into the registry, or renews that they are alive. Give them in one order, so
// that instances that do so at once do not wait for each other in a circle. A new one that wants a part of the past is written down
// together with the backfill that gives it.
func (g *Registry) Announce(ctx context.Context, db *bun.DB, consumers []store.Announcement) error {
	if err := g.rows.Enter(ctx, db, consumers); err != nil {
		return err
	}
	if err := g.rows.AnnounceConsumers(ctx, db, consumers); err != nil {
		return err
	}
	return g.rows.AnnounceTypes(ctx, db, consumers)
}
