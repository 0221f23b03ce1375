package claim

import (
	"github.com/bluecone-go/bluecone/internal/engine/registry"
	"github.com/bluecone-go/bluecone/internal/eventrow"
	"github.com/bluecone-go/bluecone/internal/store"
)

// Result is what a claim of events has leased, and what it has seen.
type Result struct {
	Kind   Kind
	Rows   []eventrow.Row // with the lock version of the new lease
	Until  int64          // when the leases end, by the database's clock, or a little earlier
	IsFull bool           // more may be due
	Seen   int            // rows it has looked at
	From   store.Cursor   // where it started
	Last   store.Cursor   // how far it has looked

	Registry *registry.Snapshot // all consumers of the deployment, as of the claim
}

// IsBlocked tells whether some events were left alone for the sake of earlier ones.
func (r Result) IsBlocked() bool { return len(r.Rows) < r.Seen }

// IsMostlyBlocked tells whether that holds for most: other instances work on what these are behind.
func (r Result) IsMostlyBlocked() bool { return 2*len(r.Rows) < r.Seen }

// NotBehind tells which of the rows are not behind an event that others work on: first names, for each aggregate of which
// they do, the first such event. The answer are indexes of rows.
func NotBehind(rows []eventrow.Row, first map[store.Aggregate]int64) (free []int) {
	for i, r := range rows {
		if before, ok := first[eventrow.AggregateOf(r)]; !ok || r.OutboxID < before {
			free = append(free, i)
		}
	}
	return free
}
