package relaytest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/relay"
)

// errNotLanded is what a sink answers that does not land.
var errNotLanded = errors.New("the database is away")

// errNotOwned is what an instance is answered whose turn is over.
var errNotOwned = errors.New("another instance has the partition")

// sink is an inbox that keeps what it has landed in memory. Several instances may share what it has landed.
type sink struct {
	*landing
	name string
}

// landing is the database of a sink.
type landing struct {
	mu      sync.Mutex
	landed  []relay.Received // the first of each id
	seen    map[string]int   // how often each id came and was landed
	busy    map[string]bool  // partitions in which a call runs
	turns   map[string]turn  // of the partitions that one has to have for itself
	errs    []error          // what no subscriber may do
	refuse  int              // as many calls fail
	refused int
	commit  func()        // called after each commit, before the acknowledgement
	away    func()        // called when a subscriber says that it can receive nothing
	room    chan struct{} // Ready waits until it is closed; nil for at once
	waiting int           // calls of Ready that wait for room
}

// turn says who has a partition, and until when.
type turn struct {
	owner string
	until time.Time
}

func newSink() *sink {
	return &sink{&landing{seen: make(map[string]int), busy: make(map[string]bool), turns: make(map[string]turn)}, "first"}
}

// another is another instance on the same database.
func (s *sink) another() *sink { return &sink{s.landing, "second"} }

// Ready waits for room, and for the partition.
func (s *sink) Ready(ctx context.Context, partition string) error {
	s.mu.Lock()
	room := s.room
	s.waiting++
	s.mu.Unlock()
	if room != nil {
		select {
		case <-room:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	s.waiting--
	s.mu.Unlock()
	for partition != "" && ctx.Err() == nil && !s.take(partition) {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return ctx.Err()
}

// take takes the partition or keeps it, unless another has it.
func (s *sink) take(partition string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, taken := s.turns[partition]; taken && t.owner != s.name && time.Now().Before(t.until) {
		return false
	}
	s.turns[partition] = turn{s.name, time.Now().Add(2 * relay.Turn)}
	return true
}

// Land keeps what is new.
func (s *sink) Land(ctx context.Context, batch []relay.Received) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.begin(batch); err != nil {
		return err
	}
	s.mu.Lock()
	for _, r := range batch {
		id := r.Attributes["id"]
		if s.seen[id]++; s.seen[id] == 1 {
			s.landed = append(s.landed, r)
		}
	}
	commit := s.commit
	delete(s.busy, s.name+batch[0].Partition)
	s.mu.Unlock()
	if commit != nil {
		commit()
	}
	return nil
}

// Away is for people, and for a test that waits for it.
func (s *sink) Away(error) {
	s.mu.Lock()
	away := s.away
	s.mu.Unlock()
	if away != nil {
		away()
	}
}

func (s *sink) begin(batch []relay.Received) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(batch) == 0 {
		s.errs = append(s.errs, errors.New("Land was called with nothing"))
		return errNotLanded
	}
	for _, r := range batch {
		if r.Partition != batch[0].Partition || r.Partition == "" || len(r.Partition) > 200 {
			s.errs = append(s.errs, fmt.Errorf("a batch of partition %q has a message of %q", batch[0].Partition, r.Partition))
		}
	}
	if t, taken := s.turns[batch[0].Partition]; taken && t.owner != s.name {
		return errNotOwned
	} else if taken {
		s.turns[batch[0].Partition] = turn{s.name, time.Now().Add(2 * relay.Turn)}
	}
	if s.busy[s.name+batch[0].Partition] {
		s.errs = append(s.errs, fmt.Errorf("Land was called twice at a time for partition %q", batch[0].Partition))
	}
	if s.refused < s.refuse {
		s.refused++
		return errNotLanded
	}
	s.busy[s.name+batch[0].Partition] = true
	return nil
}

// count is how many different messages have landed.
func (s *sink) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// repeats is how many came again after they had landed.
func (s *sink) repeats() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for times := range maps.Values(s.seen) {
		n += times - 1
	}
	return n
}

// setCommit says what happens after each commit.
func (s *sink) setCommit(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit = fn
}

// setAway says what happens when a subscriber can receive nothing.
func (s *sink) setAway(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = fn
}

// requireRounds checks that rounds 0 to n have landed, each message, those of one entity in their order.
func (s *sink) requireRounds(t testing.TB, keys, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.errs)
	order := make(map[string][]string)
	for _, r := range s.landed {
		order[r.Attributes["partitionkey"]] = append(order[r.Attributes["partitionkey"]], r.Attributes["id"])
	}
	for key := range keys {
		var want []string
		for i := range n {
			want = append(want, message(key, i).ID)
		}
		got := order[message(key, 0).Key()]
		require.Equal(t, want, got, "entity %d: nothing lost, and in order", key)
	}
	require.Len(t, slices.Collect(maps.Keys(s.seen)), keys*n, "nothing else has come")
}
